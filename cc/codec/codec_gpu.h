// The codecs on a GPU behind one face; codec.h is the CPU's. See plane_gpu.h for
// the two passes and the notes that hold for every call.
#ifndef TF_COMPTRAIN_CC_CODEC_CODEC_GPU_H_
#define TF_COMPTRAIN_CC_CODEC_CODEC_GPU_H_

#include <cstddef>

#include "cc/codec/codec.h"
#include "cc/codec/status.h"
#include "cc/codec/stream_gpu.h"

namespace comptrain {

size_t GpuScratchBytes(CodecId id, const EncodeParams& params);
size_t GpuStreamBytes(CodecId id, const EncodeParams& params,
                      const GpuTotals& totals);
Status GpuMeasure(CodecId id, const EncodeParams& params, const void* x_dev,
                  void* scratch_dev, GpuTotals* totals, CUstream_st* stream);
Status GpuWrite(CodecId id, const EncodeParams& params, const void* x_dev,
                const void* scratch_dev, const GpuTotals& totals, void* out_dev,
                CUstream_st* stream);

// id: of the stream, whose header the host does not see. With from.any_codec the
// stream says it, at the price of a launch for every codec, and id is not read.
Status GpuDecode(CodecId id, const GpuEncoded& from, void* out_dev,
                 CUstream_st* stream);
Status GpuMaskGradient(CodecId id, const GpuEncoded& from, const void* dy_dev,
                       void* dx_dev, CUstream_st* stream);

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_CODEC_GPU_H_
