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

Status GpuBatchNormGradient(const TensorIn& x_hat, const void* dy,
                            const BatchNormChannels& of, void* scratch,
                            const NormGradients& out,
                            CUstream_st* cuda_stream) {
  const int64_t rows = x_hat.n / of.channels;
  if (rows == 0) {
    const size_t bytes = sizeof(float) * static_cast<size_t>(of.channels);
    const Status s = gpu::CheckCuda(
        "GPU kernels", cudaMemsetAsync(out.dgamma, 0, bytes, cuda_stream),
        "clearing");
    if (!s.ok()) return s;
    return gpu::CheckCuda("GPU kernels",
                          cudaMemsetAsync(out.dbeta, 0, bytes, cuda_stream),
                          "clearing");
  }
  auto* coefficients = static_cast<float*>(scratch);
  auto* sums = reinterpret_cast<BatchNormSum*>(static_cast<uint8_t*>(scratch) +
                                               CoefficientBytes(of.channels));
  const int64_t sum_rows = CeilDiv(rows, kBatchNormRows);
  Status s = ForTypedItems(
      "sums of batch normalization", x_hat.dtype, sum_rows * of.channels,
      [&](auto type) {
        using T = decltype(type);
        return SumBatchNorm<T>{static_cast<const T*>(x_hat.data),
                               static_cast<const T*>(dy),
                               rows,
                               of.channels,
                               of.mean,
                               sums};
      },
      cuda_stream);
  const BatchNormSum* total = nullptr;
  if (s.ok()) s = gpu::Reduce(sums, sum_rows, of.channels, &total, cuda_stream);
  if (s.ok()) {
    s = ForItems("gradients of batch normalization", of.channels,
                 FinishBatchNorm{total, of.gamma, of.inv_std, rows, of.channels,
                                 out.dgamma, out.dbeta, coefficients},
                 cuda_stream);
  }
  if (!s.ok()) return s;
  return ForTypedItems(
      "the gradient of batch normalization", x_hat.dtype, x_hat.n,
      [&](auto type) {
        using T = decltype(type);
        return BatchNormDx<T>{static_cast<const T*>(x_hat.data),
                              static_cast<const T*>(dy),
                              of.channels,
                              of.mean,
                              coefficients,
                              static_cast<T*>(out.dx)};
      },
      cuda_stream);
}

}  // namespace comptrain
