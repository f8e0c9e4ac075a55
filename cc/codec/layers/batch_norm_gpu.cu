#include "cc/codec/layers/batch_norm_gpu.h"

#include "cc/codec/common/gpu_items.h"
#include "cc/codec/layers/batch_norm_items.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

using gpu::ForItems;
using gpu::ForTypedItems;

// The coefficients, then the sums.
static size_t CoefficientBytes(int64_t channels) {
  return AlignSection(3 * sizeof(float) * static_cast<size_t>(channels));
}

size_t GpuBatchNormScratchBytes(int64_t n, int64_t channels) {
  const int64_t rows = CeilDiv(n / channels, kBatchNormRows);
  return CoefficientBytes(channels) +
         sizeof(BatchNormSum) * gpu::ReductionSize(rows, channels);
}

Status GpuBatchNormGradient(const void* x_hat, DType dtype, int64_t n,
                            int64_t channels, const void* dy,
                            const float* gamma, const float* mean,
                            const float* inv_std, void* scratch, void* dx,
                            float* dgamma, float* dbeta,
                            CUstream_st* cuda_stream) {
  const int64_t rows = n / channels;
  if (rows == 0) {
    const size_t bytes = sizeof(float) * static_cast<size_t>(channels);
    const Status s = gpu::CheckCuda(
        "GPU kernels", cudaMemsetAsync(dgamma, 0, bytes, cuda_stream),
        "clearing");
    if (!s.ok()) return s;
    return gpu::CheckCuda("GPU kernels",
                          cudaMemsetAsync(dbeta, 0, bytes, cuda_stream),
                          "clearing");
  }
  auto* coefficients = static_cast<float*>(scratch);
  auto* sums = reinterpret_cast<BatchNormSum*>(static_cast<uint8_t*>(scratch) +
                                               CoefficientBytes(channels));
  const int64_t sum_rows = CeilDiv(rows, kBatchNormRows);
  Status s = ForTypedItems(
      "sums of batch normalization", dtype, sum_rows * channels,
      [&](auto type) {
        using T = decltype(type);
        return SumBatchNorm<T>{static_cast<const T*>(x_hat),
                               static_cast<const T*>(dy),
                               rows,
                               channels,
                               mean,
                               sums};
      },
      cuda_stream);
  const BatchNormSum* total = nullptr;
  if (s.ok()) s = gpu::Reduce(sums, sum_rows, channels, &total, cuda_stream);
  if (s.ok()) {
    s = ForItems("gradients of batch normalization", channels,
                 FinishBatchNorm{total, gamma, inv_std, rows, channels, dgamma,
                                 dbeta, coefficients},
                 cuda_stream);
  }
  if (!s.ok()) return s;
  return ForTypedItems(
      "the gradient of batch normalization", dtype, n,
      [&](auto type) {
        using T = decltype(type);
        return BatchNormDx<T>{static_cast<const T*>(x_hat),
                              static_cast<const T*>(dy),
                              channels,
                              mean,
                              coefficients,
                              static_cast<T*>(dx)};
      },
      cuda_stream);
}

}  // namespace comptrain
