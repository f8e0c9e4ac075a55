#include "cc/codec/statistics/gradient_stats.h"

#include <algorithm>
#include <vector>

#include "cc/codec/statistics/gradient_stats_kernels.h"
#include "cc/codec/common/isa.h"

namespace comptrain {
namespace {

// Elements in a block. Blocks are summed apart and added in order, whatever
// the number of threads.
constexpr int64_t kBlock = 16384;
static_assert(kBlock % kStatsLanes == 0, "blocks start at lane 0");

struct Sums {
  double sq = 0;
  double abs = 0;
  int64_t nonfinite = 0;
};

Sums AddLanes(const StatsLanes& lanes) {
  Sums sums;
  for (int i = 0; i < kStatsLanes; ++i) {
    sums.sq += lanes.sum_sq[i];
    sums.abs += lanes.sum_abs[i];
  }
  sums.nonfinite = lanes.nonfinite;
  return sums;
}

template <class T>
void AddScalar(const void* x, int64_t n, StatsLanes* lanes) {
  AddStatsTail(static_cast<const T*>(x), 0, n, lanes);
}

}  // namespace

constexpr StatsKernels kStatsKernelsScalar = {
    {AddScalar<float>, AddScalar<BF16>, AddScalar<F16>}};

GradientStats MeasureGradientWith(const StatsKernels& kernels, const void* dy,
                                  DType dtype, int64_t n, int64_t channels,
                                  const ParallelFor& parallel) {
  GradientStats stats;
  if (n <= 0) return stats;
  const auto add = kernels.add[static_cast<int>(dtype)];
  const auto* x = static_cast<const uint8_t*>(dy);
  const int64_t item_bytes = ItemBytes(dtype);
  std::vector<Sums> blocks((n + kBlock - 1) / kBlock);
  parallel(blocks.size(), kBlock / 2, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kBlock;
      StatsLanes lanes;
      add(x + first * item_bytes, std::min(kBlock, n - first), &lanes);
      blocks[b] = AddLanes(lanes);
    }
  });
  Sums total;
  for (const Sums& s : blocks) {
    total.sq += s.sq;
    total.abs += s.abs;
    total.nonfinite += s.nonfinite;
  }
  const int64_t finite = n - total.nonfinite;
  stats.nonfinite = total.nonfinite;
  stats.mean_channel_sum_sq =
      total.sq / static_cast<double>(std::max<int64_t>(1, channels));
  // The mean of the elements that were summed.
  if (finite > 0) stats.mean_abs = total.abs / static_cast<double>(finite);
  return stats;
}

GradientStats MeasureGradient(const void* dy, DType dtype, int64_t n,
                              int64_t channels, const ParallelFor& parallel) {
  return MeasureGradientWith(StatsKernelsOf(Isa::kBest), dy, dtype, n, channels,
                             parallel);
}

}  // namespace comptrain
