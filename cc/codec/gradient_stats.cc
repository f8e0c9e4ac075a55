#include "cc/codec/gradient_stats.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cc/codec/half.h"

namespace comptrain {
namespace {

// Elements in a block. Blocks are summed apart and added in order, whatever
// the number of threads.
constexpr int64_t kBlock = 16384;

struct BlockSums {
  double sq = 0;
  double abs = 0;
  int64_t nonfinite = 0;
};

template <class T>
BlockSums SumBlock(const T* x, int64_t n) {
  BlockSums s;
  for (int64_t i = 0; i < n; ++i) {
    const double v = ToFloat(x[i]);
    if (!std::isfinite(v)) {
      ++s.nonfinite;
      continue;
    }
    s.sq += v * v;
    s.abs += std::fabs(v);
  }
  return s;
}

}  // namespace

GradientStats MeasureGradient(const void* dy, DType dtype, int64_t n,
                              int64_t channels, const ParallelFor& parallel) {
  GradientStats stats;
  if (n <= 0) return stats;
  std::vector<BlockSums> blocks((n + kBlock - 1) / kBlock);
  WithStorageType(dtype, [&](auto type) {
    const auto* x = static_cast<const decltype(type)*>(dy);
    parallel(blocks.size(), kBlock / 2, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t first = b * kBlock;
        blocks[b] = SumBlock(x + first, std::min(kBlock, n - first));
      }
    });
  });
  BlockSums total;
  for (const BlockSums& s : blocks) {
    total.sq += s.sq;
    total.abs += s.abs;
    total.nonfinite += s.nonfinite;
  }
  stats.nonfinite = total.nonfinite;
  stats.mean_channel_sum_sq =
      total.sq / static_cast<double>(std::max<int64_t>(1, channels));
  const int64_t finite = n - total.nonfinite;
  if (finite > 0) stats.mean_abs = total.abs / static_cast<double>(finite);
  return stats;
}

}  // namespace comptrain
