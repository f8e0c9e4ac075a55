#include "cc/codec/statistics/gpu.h"

#include <algorithm>

#include "cc/codec/common/gpu_items.h"
#include "cc/codec/statistics/items.h"

namespace comptrain {

using gpu::ForItems;
using gpu::ForTypedItems;

// The summary, then the sums it is made of.
size_t GpuSummaryScratchBytes() {
  return sizeof(Summary) * (1 + gpu::ReductionSize(kSummaryItems, 1));
}

Status GpuSummarize(const void* x, DType dtype, int64_t n, void* scratch,
                    CUstream_st* cuda_stream) {
  auto* summary = static_cast<Summary*>(scratch);
  Summary* sums = summary + 1;
  const int64_t items = std::clamp<int64_t>(n, 1, kSummaryItems);
  Status s = ForTypedItems(
      "summing", dtype, items,
      [&](auto type) {
        using T = decltype(type);
        return Summarize<T>{static_cast<const T*>(x), n, sums};
      },
      cuda_stream);
  const Summary* total = nullptr;
  if (s.ok()) s = gpu::Reduce(sums, items, 1, &total, cuda_stream);
  if (!s.ok()) return s;
  return gpu::CheckCuda("GPU kernels",
                        cudaMemcpyAsync(summary, total, sizeof *summary,
                                        cudaMemcpyDeviceToDevice, cuda_stream),
                        "copying a sum");
}

Status GpuGradientStats(const TensorIn& dy, int64_t channels, void* scratch,
                        float* stats, CUstream_st* cuda_stream) {
  const Status s = GpuSummarize(dy.data, dy.dtype, dy.n, scratch, cuda_stream);
  if (!s.ok()) return s;
  return ForItems("gradient statistics", 1,
                  FinishGradientStats{static_cast<const Summary*>(scratch),
                                      channels, stats},
                  cuda_stream);
}

}  // namespace comptrain
