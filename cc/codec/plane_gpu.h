// Codec A on a GPU: the same bytes as PlaneEncoder, from and to device memory.
//
// Every call is asynchronous on the caller's stream, allocates nothing, and
// returns an error of the CUDA runtime as Status::Invalid. A tensor is encoded
// in two passes, so that the caller can allocate exactly: the first encodes to
// scratch memory, the second copies from there, and encodes again only tiles that
// take more than 5 bits a value.
//
//   PlaneGpuMeasure(params, x_dev, scratch_dev, totals, stream);
//   wait for the stream; allocate PlaneGpuBytes(params, *totals);
//   PlaneGpuWrite(params, x_dev, scratch_dev, *totals, out_dev, stream);
#ifndef TF_COMPTRAIN_CC_CODEC_PLANE_GPU_H_
#define TF_COMPTRAIN_CC_CODEC_PLANE_GPU_H_

#include <cstddef>

#include "cc/codec/plane.h"
#include "cc/codec/status.h"
#include "cc/codec/stream_gpu.h"

namespace comptrain {

// Device bytes of scratch, aligned to 16: about 16% of an f32 tensor. The second
// pass reads what the first one wrote there.
size_t PlaneGpuScratchBytes(const PlaneParams& params);
// Bytes of the stream.
size_t PlaneGpuBytes(const PlaneParams& params, const GpuTotals& totals);

// x_dev: params.n elements, aligned to an element, unchanged until the second
// pass is done. totals: seen by the device; valid once the stream got there.
Status PlaneGpuMeasure(const PlaneParams& params, const void* x_dev,
                       void* scratch_dev, GpuTotals* totals,
                       CUstream_st* stream);
// out_dev: PlaneGpuBytes() bytes, aligned to 4; every byte of it is written.
Status PlaneGpuWrite(const PlaneParams& params, const void* x_dev,
                     const void* scratch_dev, const GpuTotals& totals,
                     void* out_dev, CUstream_st* stream);

// out_dev: from.n elements. The stream must have been written with from.channels.
// Where it is damaged nothing is read or written outside the buffers, and tiles
// that do not add up come out as zeros.
Status PlaneGpuDecode(const GpuEncoded& from, void* out_dev,
                      CUstream_st* stream);
// As PlaneMaskGradient; dy_dev and dx_dev may be the same.
Status PlaneGpuMaskGradient(const GpuEncoded& from, const void* dy_dev,
                            void* dx_dev, CUstream_st* stream);

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_PLANE_GPU_H_
