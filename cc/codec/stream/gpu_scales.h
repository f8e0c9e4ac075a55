// scales.h on a GPU: what a sample says of a tensor's channels, and the scales
// that they have by it. The same numbers as on the CPU.
//
// Every call is asynchronous on cuda_stream, allocates nothing, and returns an
// error of the CUDA runtime as Status::Invalid.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/codec/common/gpu.h"
#include "cc/codec/common/status.h"
#include "cc/codec/common/tensor.h"
#include "cc/codec/stream/params.h"

namespace comptrain {

// In memory that host and device see. Valid once cuda_stream got there.
struct GpuScaleTotals {
  double sigma, mean_square;  // as ChannelSample has them
  double rms_bound_over_eb;
  int32_t has_exponents, has_centres;  // not 0: some differ from 0
};

// Device bytes, aligned to 16, for the two calls below and for the scales.
size_t GpuScalesScratchBytes(int64_t channels);

// x_dev: n > 0 elements in rows of `channels`. Fills in sigma and mean_square.
Status GpuSampleChannels(const TensorIn& x_dev, int64_t channels,
                         void* scratch_dev, GpuScaleTotals* totals,
                         CUstream_st* cuda_stream);

// Fills in the rest, and the scales in scratch. params: all but `scales`, of
// the same tensor.
Status GpuOwnScales(const EncodeParams& params, void* scratch_dev,
                    GpuScaleTotals* totals, CUstream_st* cuda_stream);
// Where they are, whether or not they differ. Tensors of few rows have none.
ChannelScales GpuScalesIn(const EncodeParams& params, const void* scratch_dev);

}  // namespace comptrain
