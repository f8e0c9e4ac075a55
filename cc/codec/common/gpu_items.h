// What needs no warp: functions of an item's number, an item a GPU thread. For
// CUDA sources.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cc/codec/common/bits.h"
#include "cc/codec/common/gpu_launch.h"
#include "cc/codec/common/half.h"

namespace comptrain::gpu {

constexpr int kItemThreads = 256;
constexpr int64_t kMostBlocks = 1 << 20;  // threads then take several items

template <class F>
__global__ void __launch_bounds__(kItemThreads) RunItems(F f, int64_t n) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kItemThreads;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kItemThreads + threadIdx.x;
  for (; i < n; i += step) f(i);
}

// f(0), ..., f(n - 1), in no order.
template <class F>
Status ForItems(const char* what, int64_t n, const F& f,
                CUstream_st* cuda_stream) {
  if (n <= 0) return {};
  return Launch("GPU kernels", what, RunItems<F>,
                std::min(kMostBlocks, CeilDiv(n, kItemThreads)), kItemThreads,
                0, cuda_stream, f, n);
}

// As ForItems, f made by make(T()) for the storage type.
template <class Make>
Status ForTypedItems(const char* what, DType dtype, int64_t n, const Make& make,
                     CUstream_st* cuda_stream) {
  Status s;
  WithStorageType(dtype, [&](auto type) {
    s = ForItems(what, n, make(type), cuda_stream);
  });
  return s;
}

constexpr int64_t kReduceRows = kAddedRows;

// rows x columns of sums to ceil(rows / kReduceRows) x columns, until one row
// is left. Item: an element of the result. A fixed order: the same bits every
// time.
template <class Sum>
struct ReduceRows {
  const Sum* from;
  int64_t rows, columns;
  Sum* to;

  COMPTRAIN_HD void operator()(int64_t item) const {
    const int64_t begin = item / columns * kReduceRows;
    const int64_t end = begin + kReduceRows < rows ? begin + kReduceRows : rows;
    Sum total = from[begin * columns + item % columns];
    for (int64_t row = begin + 1; row < end; ++row) {
      total.Add(from[row * columns + item % columns]);
    }
    to[item] = total;
  }
};

// Sums for rows of `columns`, and for what they are reduced to, in turn.
static inline int64_t ReductionSize(int64_t rows, int64_t columns) {
  return columns * (rows + CeilDiv(rows, kReduceRows));
}

// Adds up the rows at `sums`, of ReductionSize elements; *total: where the last
// row is.
template <class Sum>
Status Reduce(Sum* sums, int64_t rows, int64_t columns, const Sum** total,
              CUstream_st* cuda_stream) {
  Sum* to = sums + rows * columns;
  while (rows > 1) {
    const int64_t fewer = CeilDiv(rows, kReduceRows);
    const Status s =
        ForItems("adding up", fewer * columns,
                 ReduceRows<Sum>{sums, rows, columns, to}, cuda_stream);
    if (!s.ok()) return s;
    std::swap(sums, to);
    rows = fewer;
  }
  *total = sums;
  return {};
}

}  // namespace comptrain::gpu
