// Internal: the sums behind gradient_stats.h over one block, one table for
// each instruction set. All give the same bits: element i adds to lane i % 16,
// squares of floats are exact in double, and lanes are added in order.
#pragma once

#include <cstdint>

#include "cc/codec/common/isa.h"
#include "cc/codec/statistics/gradient_stats.h"
#include "cc/codec/common/half.h"

namespace comptrain {

constexpr int kStatsLanes = 16;

struct StatsLanes {
  double sum_sq[kStatsLanes] = {};
  double sum_abs[kStatsLanes] = {};
  int64_t nonfinite = 0;
};

// Adds n elements to lanes that are zero. Indexed by DType.
struct StatsKernels {
  void (*add[3])(const void* x, int64_t n, StatsLanes* lanes);
};

COMPTRAIN_KERNEL_TABLES(StatsKernels)

// MeasureGradient with a given table.
GradientStats MeasureGradientWith(const StatsKernels& kernels, const void* dy,
                                  DType dtype, int64_t n, int64_t channels,
                                  const ParallelFor& parallel);

// Elements [begin, n) of a block.
template <class T>
static inline void AddStatsTail(const T* x, int64_t begin, int64_t n,
                                StatsLanes* lanes) {
  for (int64_t i = begin; i < n; ++i) {
    const uint32_t magnitude = FloatBits(ToFloat(x[i])) & 0x7fffffff;
    if (magnitude >= 0x7f800000) {
      ++lanes->nonfinite;
      continue;
    }
    const double v = BitsFloat(magnitude);
    lanes->sum_sq[i % kStatsLanes] += v * v;
    lanes->sum_abs[i % kStatsLanes] += v;
  }
}

}  // namespace comptrain
