// gradient_stats_kernels.h over vectors, for avx2.cc and avx512.cc.
#pragma once

#include "cc/codec/common/vector.h"
#include "cc/codec/statistics/gradient_stats_kernels.h"

#define V COMPTRAIN_V

namespace comptrain {
namespace {

// Magnitudes, 0 for those that are not finite, and how many these were.
inline Floats FiniteMagnitudes(Floats v, int64_t* nonfinite) {
  const Floats magnitude = Abs(v);
  const Mask finite = Greater(AllInts(0x7f800000), AsInts(magnitude));
  const uint32_t bits = BitsOf(finite);
  if (bits != (1u << kWidth) - 1) {
    *nonfinite += kWidth - __builtin_popcount(bits);
  }
  return Keep(magnitude, finite);
}

template <class T>
void Add(const void* x, int64_t n, StatsLanes* lanes) {
  constexpr int kDoubles = kWidth / 2, kVectors = 16 / kDoubles;
  const T* in = static_cast<const T*>(x);
  Doubles sq[kVectors] = {}, abs[kVectors] = {};
  int64_t nonfinite = 0, i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int h = 0; h < kVectors; h += 2) {
      const Floats v =
          FiniteMagnitudes(Load(in + i + kDoubles * h), &nonfinite);
      const Doubles low = LowDoubles(v), high = HighDoubles(v);
      sq[h] += low * low;
      abs[h] += low;
      sq[h + 1] += high * high;
      abs[h + 1] += high;
    }
  }
  for (int h = 0; h < kVectors; ++h) {
    V(storeu_pd)(lanes->sum_sq + kDoubles * h, sq[h]);
    V(storeu_pd)(lanes->sum_abs + kDoubles * h, abs[h]);
  }
  lanes->nonfinite = nonfinite;
  AddStatsTail(in, i, n, lanes);
}

}  // namespace

constexpr StatsKernels COMPTRAIN_NAME(kStatsKernels) = {
    {Add<float>, Add<BF16>, Add<F16>}};

}  // namespace comptrain

#undef V
