// Codec C on a GPU: the same bytes as ZvcEncoder, from and to device memory.
// The calls are those of plane_gpu.h, whose notes hold here too: asynchronous,
// nothing allocated, two passes.
#ifndef TF_COMPTRAIN_CC_CODEC_ZVC_GPU_H_
#define TF_COMPTRAIN_CC_CODEC_ZVC_GPU_H_

#include <cstddef>

#include "cc/codec/status.h"
#include "cc/codec/stream_gpu.h"
#include "cc/codec/zvc.h"

namespace comptrain {

// Device bytes of scratch, alike for both passes, aligned to 16: about 0.2% of
// an f32 tensor.
size_t ZvcGpuScratchBytes(const ZvcParams& params);
// Bytes of the stream.
size_t ZvcGpuBytes(const ZvcParams& params, const GpuTotals& totals);

// totals->nonzero counts the elements whose bits are not all zero.
Status ZvcGpuMeasure(const ZvcParams& params, const void* x_dev,
                     void* scratch_dev, GpuTotals* totals, CUstream_st* stream);
Status ZvcGpuWrite(const ZvcParams& params, const void* x_dev,
                   const void* scratch_dev, const GpuTotals& totals,
                   void* out_dev, CUstream_st* stream);

// Chunks that do not add up come out as zeros.
Status ZvcGpuDecode(const GpuEncoded& from, void* out_dev,
                    CUstream_st* stream);
// As ZvcMaskGradient, for dy and dx of the stream's own dtype.
Status ZvcGpuMaskGradient(const GpuEncoded& from, const void* dy_dev,
                          void* dx_dev, CUstream_st* stream);

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_ZVC_GPU_H_
