// Masks, pooling, samples, sums and the gradient of batch normalization on a GPU:
// what bitmask.h, pool.h, choose.h, gradient_stats.h and batch_norm.h do on a CPU.
//
// Every call is asynchronous on the caller's stream, allocates nothing, and
// returns an error of the CUDA runtime as Status::Invalid. All pointers are to
// device memory, aligned to their elements; scratch to 16 bytes.
#ifndef TF_COMPTRAIN_CC_CODEC_ITEMS_GPU_H_
#define TF_COMPTRAIN_CC_CODEC_ITEMS_GPU_H_

#include <cstddef>
#include <cstdint>

#include "cc/codec/choose.h"
#include "cc/codec/pool.h"
#include "cc/codec/status.h"
#include "cc/codec/stream.h"

struct CUstream_st;  // cudaStream_t, without CUDA's headers

namespace comptrain {

struct Summary;  // items.h

Status BitmaskGpuPack(const void* x, DType dtype, int64_t n, float lower,
                      float upper, uint8_t* bits, CUstream_st* stream);
Status BitmaskGpuGradient(const uint8_t* bits, DType dtype, int64_t n, float on,
                          float off, const void* dy, void* dx,
                          CUstream_st* stream);

Status MaxPoolGpuIndex(const void* x, DType dtype, const PoolShape& shape,
                       void* y, uint8_t* index, CUstream_st* stream);
Status MaxPoolGpuGradient(const uint8_t* index, DType dtype,
                          const PoolShape& shape, const void* dy, void* dx,
                          CUstream_st* stream);

// sample: plan.n elements.
Status TakeSampleGpu(const void* x, DType dtype, const SamplePlan& plan,
                     void* sample, CUstream_st* stream);

// What is in a tensor. The summary is the first thing in scratch.
size_t SummaryGpuScratchBytes();
Status SummarizeGpu(const void* x, DType dtype, int64_t n, void* scratch,
                    CUstream_st* stream);
// stats: 3 floats, as GradientStats has them. scratch as above.
Status GradientGpuStats(const void* dy, DType dtype, int64_t n,
                        int64_t channels, void* scratch, float* stats,
                        CUstream_st* stream);

// From x_hat, decoded to dtype. n: a multiple of channels; dx may be dy.
size_t BatchNormGpuScratchBytes(int64_t n, int64_t channels);
Status BatchNormGpuGradient(const void* x_hat, DType dtype, int64_t n,
                            int64_t channels, const void* dy,
                            const float* gamma, const float* mean,
                            const float* inv_std, void* scratch, void* dx,
                            float* dgamma, float* dbeta, CUstream_st* stream);

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_ITEMS_GPU_H_
