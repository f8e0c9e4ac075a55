// The codecs on a GPU behind one face; codec.h is the CPU's.
#pragma once

#include <cstdint>

#include "cc/codec/registry/choose.h"
#include "cc/codec/registry/codec.h"
#include "cc/codec/stream/gpu.h"

namespace comptrain {

const GpuEncoder& GpuEncoderOf(CodecId id);

// id: of the stream, whose header the host does not see. With from.any_codec
// the stream says it, at the price of a launch for every codec, and id is not
// read.
Status GpuDecode(CodecId id, const GpuEncoded& from, void* out_dev,
                 CUstream_st* cuda_stream);
Status GpuMaskGradient(CodecId id, const GpuEncoded& from, const void* dy_dev,
                       void* dx_dev, CUstream_st* cuda_stream);

// SampleOf on a GPU. sample_dev: plan.n elements.
Status GpuTakeSample(const void* x_dev, DType dtype, const SamplePlan& plan,
                     void* sample_dev, CUstream_st* cuda_stream);

}  // namespace comptrain
