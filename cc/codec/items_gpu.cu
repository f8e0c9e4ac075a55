#include "cc/codec/items_gpu.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "cc/codec/bitmask.h"
#include "cc/codec/bits.h"
#include "cc/codec/items.h"
#include "cc/codec/stream_gpu_kernels.h"

namespace comptrain {
namespace {

constexpr int kThreadsPerBlock = 256;
constexpr int64_t kMostBlocks = 1 << 20;  // threads then take several items

template <class F>
__global__ void __launch_bounds__(kThreadsPerBlock) RunItems(F f, int64_t n) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreadsPerBlock;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreadsPerBlock + threadIdx.x;
  for (; i < n; i += step) f(i);
}

// f(0), ..., f(n - 1), in no order.
template <class F>
Status ForItems(const char* what, int64_t n, const F& f, CUstream_st* stream) {
  if (n <= 0) return {};
  return gpu::Launch("GPU kernels", what, RunItems<F>,
                     std::min(kMostBlocks, CeilDiv(n, kThreadsPerBlock)),
                     kThreadsPerBlock, 0, stream, f, n);
}

// As ForItems, f made by make(T()) for the storage type.
template <class Make>
Status ForTypedItems(const char* what, DType dtype, int64_t n, const Make& make,
                     CUstream_st* stream) {
  Status s;
  WithStorageType(dtype, [&](auto type) {
    s = ForItems(what, n, make(type), stream);
  });
  return s;
}

// Sums for rows of `columns`, and for what they are reduced to, in turn.
int64_t ReductionSize(int64_t rows, int64_t columns) {
  return columns * (rows + CeilDiv(rows, kReduceRows));
}

// Adds up the rows at `sums`, of ReductionSize elements; *total: where the last
// row is.
template <class Sum>
Status Reduce(Sum* sums, int64_t rows, int64_t columns, const Sum** total,
              CUstream_st* stream) {
  Sum* to = sums + rows * columns;
  while (rows > 1) {
    const int64_t fewer = CeilDiv(rows, kReduceRows);
    const Status s =
        ForItems("adding up", fewer * columns,
                 ReduceRows<Sum>{sums, rows, columns, to}, stream);
    if (!s.ok()) return s;
    std::swap(sums, to);
    rows = fewer;
  }
  *total = sums;
  return {};
}

int64_t Elements(const PoolShape& s, const int64_t size[3]) {
  return s.batch * size[0] * size[1] * size[2] * s.channels;
}

}  // namespace

Status BitmaskGpuPack(const void* x, DType dtype, int64_t n, float lower,
                      float upper, uint8_t* bits, CUstream_st* stream) {
  return ForTypedItems(
      "packing bits", dtype, BitmaskBytes(n),
      [&](auto type) {
        using T = decltype(type);
        return PackBits<T>{static_cast<const T*>(x), n, lower, upper, bits};
      },
      stream);
}

Status BitmaskGpuGradient(const uint8_t* bits, DType dtype, int64_t n, float on,
                          float off, const void* dy, void* dx,
                          CUstream_st* stream) {
  return ForTypedItems(
      "a gradient by bits", dtype, n,
      [&](auto type) {
        using T = decltype(type);
        return ApplyBits<T>{bits, on, off, static_cast<const T*>(dy),
                            static_cast<T*>(dx)};
      },
      stream);
}

Status MaxPoolGpuIndex(const void* x, DType dtype, const PoolShape& shape,
                       void* y, uint8_t* index, CUstream_st* stream) {
  const int bits = PoolIndexBits(shape);
  const int64_t elements = Elements(shape, shape.out_size);
  return ForTypedItems(
      "max pooling", dtype, bits == 16 ? elements : PoolIndexBytes(shape),
      [&](auto type) {
        using T = decltype(type);
        return PoolMaxima<T>{shape, bits, elements, static_cast<const T*>(x),
                             static_cast<T*>(y), index};
      },
      stream);
}

Status MaxPoolGpuGradient(const uint8_t* index, DType dtype,
                          const PoolShape& shape, const void* dy, void* dx,
                          CUstream_st* stream) {
  return ForTypedItems(
      "the gradient of max pooling", dtype, Elements(shape, shape.in_size),
      [&](auto type) {
        using T = decltype(type);
        return PoolScatter<T>{shape, PoolIndexBits(shape), index,
                              static_cast<const T*>(dy), static_cast<T*>(dx)};
      },
      stream);
}

Status TakeSampleGpu(const void* x, DType dtype, const SamplePlan& plan,
                     void* sample, CUstream_st* stream) {
  return ForTypedItems(
      "taking a sample", dtype, plan.n,
      [&](auto type) {
        using T = decltype(type);
        return TakeSample<T>{plan, static_cast<const T*>(x),
                             static_cast<T*>(sample)};
      },
      stream);
}

// The summary, then the sums it is made of.
size_t SummaryGpuScratchBytes() {
  return sizeof(Summary) * (1 + ReductionSize(kSummaryItems, 1));
}

Status SummarizeGpu(const void* x, DType dtype, int64_t n, void* scratch,
                    CUstream_st* stream) {
  auto* summary = static_cast<Summary*>(scratch);
  Summary* sums = summary + 1;
  const int64_t items = std::clamp<int64_t>(n, 1, kSummaryItems);
  Status s = ForTypedItems(
      "summing", dtype, items,
      [&](auto type) {
        using T = decltype(type);
        return Summarize<T>{static_cast<const T*>(x), n, sums};
      },
      stream);
  const Summary* total = nullptr;
  if (s.ok()) s = Reduce(sums, items, 1, &total, stream);
  if (!s.ok()) return s;
  return gpu::CheckCuda("GPU kernels",
                        cudaMemcpyAsync(summary, total, sizeof *summary,
                                        cudaMemcpyDeviceToDevice, stream),
                        "copying a sum");
}

Status GradientGpuStats(const void* dy, DType dtype, int64_t n,
                        int64_t channels, void* scratch, float* stats,
                        CUstream_st* stream) {
  const Status s = SummarizeGpu(dy, dtype, n, scratch, stream);
  if (!s.ok()) return s;
  return ForItems(
      "gradient statistics", 1,
      FinishGradientStats{static_cast<const Summary*>(scratch), channels, stats},
      stream);
}

// The coefficients, then the sums.
static size_t CoefficientBytes(int64_t channels) {
  return AlignSection(3 * sizeof(float) * static_cast<size_t>(channels));
}

size_t BatchNormGpuScratchBytes(int64_t n, int64_t channels) {
  const int64_t rows = CeilDiv(n / channels, kBatchNormRows);
  return CoefficientBytes(channels) +
         sizeof(BatchNormSum) * ReductionSize(rows, channels);
}

Status BatchNormGpuGradient(const void* x_hat, DType dtype, int64_t n,
                            int64_t channels, const void* dy,
                            const float* gamma, const float* mean,
                            const float* inv_std, void* scratch, void* dx,
                            float* dgamma, float* dbeta, CUstream_st* stream) {
  const int64_t rows = n / channels;
  if (rows == 0) {
    const size_t bytes = sizeof(float) * static_cast<size_t>(channels);
    const Status s = gpu::CheckCuda(
        "GPU kernels", cudaMemsetAsync(dgamma, 0, bytes, stream), "clearing");
    if (!s.ok()) return s;
    return gpu::CheckCuda("GPU kernels",
                          cudaMemsetAsync(dbeta, 0, bytes, stream), "clearing");
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
                               static_cast<const T*>(dy), rows, channels, mean,
                               sums};
      },
      stream);
  const BatchNormSum* total = nullptr;
  if (s.ok()) s = Reduce(sums, sum_rows, channels, &total, stream);
  if (s.ok()) {
    s = ForItems("gradients of batch normalization", channels,
                 FinishBatchNorm{total, gamma, inv_std, rows, channels, dgamma,
                                 dbeta, coefficients},
                 stream);
  }
  if (!s.ok()) return s;
  return ForTypedItems(
      "the gradient of batch normalization", dtype, n,
      [&](auto type) {
        using T = decltype(type);
        return BatchNormDx<T>{static_cast<const T*>(x_hat),
                              static_cast<const T*>(dy), channels, mean,
                              coefficients, static_cast<T*>(dx)};
      },
      stream);
}

}  // namespace comptrain
