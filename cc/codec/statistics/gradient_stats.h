// One pass over an incoming gradient dy: what the error-bound law needs of it.
#pragma once

#include <cstdint>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/dtype.h"

namespace comptrain {

struct GradientStats {
  double mean_channel_sum_sq = 0;  // mean over channels k of sum dy_k^2
  double mean_abs = 0;             // mean |dy|
  int64_t nonfinite = 0;           // left out of both sums
};

// dy: n elements, host; channels = size of the last dimension. Deterministic
// for any number of threads.
GradientStats MeasureGradient(const void* dy, DType dtype, int64_t n,
                              int64_t channels, const ParallelFor& parallel);

}  // namespace comptrain
