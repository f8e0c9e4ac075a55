// In C++: those who plan a step's memory have no CUDA.
#include "cc/codec/common/bits.h"
#include "cc/codec/layers/batch_norm_gpu.h"
#include "cc/codec/layers/batch_norm_items.h"
#include "cc/codec/layers/column_shares.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

size_t CoefficientBytes(int64_t channels) {
  return AlignSection(3 * sizeof(float) * static_cast<size_t>(channels));
}

size_t GpuBatchNormScratchBytes(int64_t n, int64_t channels) {
  const int64_t rows = CeilDiv(n / channels, kBatchNormRows);
  // The rows of sums, and what they are added up to.
  const int64_t all = rows + CeilDiv(rows, kAddedRows);
  return CoefficientBytes(channels) + sizeof(BatchNormSum) * channels * all;
}

size_t GpuBatchNormScratchBytes(const FixedRateTensor& of) {
  const gpu::TensorOnGpu tensor(of);
  const int64_t channels = tensor.last;
  if (!ColumnShares::Fit(tensor)) {
    return GpuBatchNormScratchBytes(ElementsOf(of.dims), channels);
  }
  return CoefficientBytes(channels) +
         sizeof(BatchNormSum) * channels * ColumnShares(tensor).parts;
}

}  // namespace comptrain
