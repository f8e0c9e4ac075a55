// Codec B on a GPU: the same bytes as RansEncoder, from and to device memory.
// The calls are those of plane_gpu.h, whose notes hold here too: asynchronous,
// nothing allocated, two passes, with 5 bits a value of scratch between them.
#ifndef TF_COMPTRAIN_CC_CODEC_RANS_GPU_H_
#define TF_COMPTRAIN_CC_CODEC_RANS_GPU_H_

#include <cstddef>

#include "cc/codec/rans.h"
#include "cc/codec/status.h"
#include "cc/codec/stream_gpu.h"

namespace comptrain {

// Device bytes of scratch, aligned to 16: about 16% of an f32 tensor. The second
// pass reads what the first one wrote there.
size_t RansGpuScratchBytes(const RansParams& params);
// Bytes of the stream.
size_t RansGpuBytes(const RansParams& params, const GpuTotals& totals);

Status RansGpuMeasure(const RansParams& params, const void* x_dev,
                      void* scratch_dev, GpuTotals* totals,
                      CUstream_st* stream);
Status RansGpuWrite(const RansParams& params, const void* x_dev,
                    const void* scratch_dev, const GpuTotals& totals,
                    void* out_dev, CUstream_st* stream);

// Chunks that do not add up come out as zeros.
Status RansGpuDecode(const GpuEncoded& from, void* out_dev,
                     CUstream_st* stream);
// As RansMaskGradient, for dy and dx of the stream's own dtype.
Status RansGpuMaskGradient(const GpuEncoded& from, const void* dy_dev,
                           void* dx_dev, CUstream_st* stream);

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_RANS_GPU_H_
