#include "cc/codec/statistics/gradient_stats.h"

#include <cmath>
#include <limits>
#include <vector>

#include "cc/codec/statistics/gradient_stats_kernels.h"
#include "cc/codec/testing/data.h"
#include "cc/codec/testing/isas.h"
#include "cc/codec/testing/threads.h"

namespace comptrain {
namespace {

GradientStats Reference(const Buffer& dy, DType dtype, int64_t n,
                        int64_t channels) {
  std::vector<long double> channel_sq(channels);
  long double abs = 0;
  GradientStats stats;
  for (int64_t i = 0; i < n; ++i) {
    const float v = LoadFloat(dy.data(), dtype, i);
    if (!std::isfinite(v)) {
      ++stats.nonfinite;
      continue;
    }
    channel_sq[i % channels] += static_cast<long double>(v) * v;
    abs += std::fabs(v);
  }
  for (const long double s : channel_sq) {
    stats.mean_channel_sum_sq += static_cast<double>(s / channels);
  }
  const int64_t finite = n - stats.nonfinite;
  if (finite > 0) stats.mean_abs = static_cast<double>(abs / finite);
  return stats;
}

bool Close(double a, double b) { return std::fabs(a - b) <= 1e-12 * b; }

bool Identical(const GradientStats& a, const GradientStats& b) {
  return a.mean_abs == b.mean_abs && a.nonfinite == b.nonfinite &&
         a.mean_channel_sum_sq == b.mean_channel_sum_sq;
}

void TestMeasure(DType dtype, int64_t pixels, int64_t channels, int special) {
  const int64_t n = pixels * channels;
  Buffer dy(n * ItemBytes(dtype), 4);
  FillRandom(static_cast<uint32_t>(n), dtype, n, special, dy.data());
  const GradientStats expected = Reference(dy, dtype, n, channels);
  const GradientStats first =
      MeasureGradient(dy.data(), dtype, n, channels, SerialFor);
  CHECK(Close(first.mean_abs, expected.mean_abs));
  CHECK(Close(first.mean_channel_sum_sq, expected.mean_channel_sum_sq));
  CHECK_EQ(first.nonfinite, expected.nonfinite);
  for (const Isa isa : AvailableIsas()) {
    const StatsKernels* const table = &StatsKernelsOf(isa);
    for (const ParallelFor& parallel : ParallelVariants()) {
      CHECK(Identical(first, MeasureGradientWith(*table, dy.data(), dtype, n,
                                                 channels, parallel)));
    }
  }
}

void TestKnownValues() {
  const float dy[] = {3, -4, INFINITY, 1, NAN, -2};
  const GradientStats s = MeasureGradient(dy, DType::kF32, 6, 2, SerialFor);
  CHECK_EQ(s.nonfinite, 2);
  CHECK_EQ(s.mean_channel_sum_sq, 15);
  CHECK_EQ(s.mean_abs, 2.5);
  const float huge[] = {std::numeric_limits<float>::max(), INFINITY};
  const GradientStats h = MeasureGradient(huge, DType::kF32, 2, 1, SerialFor);
  CHECK(std::isfinite(h.mean_channel_sum_sq) && h.mean_channel_sum_sq > 1e76);
  const float none[] = {NAN};
  CHECK_EQ(MeasureGradient(none, DType::kF32, 1, 1, SerialFor).mean_abs, 0);
}

}  // namespace
}  // namespace comptrain

int main() {
  using namespace comptrain;
  TestKnownValues();
  for (const DType dtype : kAllDTypes) {
    for (const int64_t pixels : {0, 1, 2, 15, 17, 100, 1023, 5463}) {
      for (const int64_t channels : {1, 3, 16, 33}) {
        TestMeasure(dtype, pixels, channels, 0);
        TestMeasure(dtype, pixels, channels, 5);
      }
    }
  }
  return FinishTests();
}
