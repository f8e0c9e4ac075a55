// Internal, for CUDA sources: the gradient of batch normalization, value after
// value.
#pragma once

#include "cc/codec/common/gpu_items.h"
#include "cc/codec/layers/batch_norm_gpu.h"
#include "cc/codec/layers/batch_norm_items.h"

namespace comptrain::gpu {

// n values. x: see X.
template <class T, class X>
struct BatchNormItems {
  X x;
  const T* dy;
  int64_t n;
};

// scratch: GpuBatchNormScratchBytes.
template <class T, class X>
Status BatchNormGradientByItems(const BatchNormItems<T, X>& items,
                                const BatchNormChannels& of, void* scratch,
                                const NormGradients& out,
                                CUstream_st* cuda_stream) {
  const auto& [x, dy, n] = items;
  const int64_t rows = n / of.channels;
  auto* const coefficients = static_cast<float*>(scratch);
  auto* const sums = reinterpret_cast<BatchNormSum*>(
      static_cast<uint8_t*>(scratch) + CoefficientBytes(of.channels));
  const int64_t sum_rows = CeilDiv(rows, kBatchNormRows);
  Status s = ForItems(
      "sums of batch normalization", sum_rows * of.channels,
      SumBatchNorm<T, X>{x, dy, rows, of.channels, of.mean, sums}, cuda_stream);
  const BatchNormSum* total = nullptr;
  if (s.ok()) s = Reduce(sums, sum_rows, of.channels, &total, cuda_stream);
  if (s.ok()) {
    s = ForItems("gradients of batch normalization", of.channels,
                 FinishBatchNorm{total, of.gamma, of.inv_std, rows, of.channels,
                                 out.dgamma, out.dbeta, coefficients},
                 cuda_stream);
  }
  if (!s.ok()) return s;
  return ForItems("the gradient of batch normalization", n,
                  BatchNormDx<T, X>{x, dy, of.channels, of.mean, coefficients,
                                    static_cast<T*>(out.dx)},
                  cuda_stream);
}

}  // namespace comptrain::gpu
