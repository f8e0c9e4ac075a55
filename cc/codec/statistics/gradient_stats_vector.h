// gradient_stats_kernels.h over vectors, for avx2.cc and avx512.cc.
#ifndef TF_COMPTRAIN_CC_CODEC_STATISTICS_GRADIENT_STATS_VECTOR_H_
#define TF_COMPTRAIN_CC_CODEC_STATISTICS_GRADIENT_STATS_VECTOR_H_

#include "cc/codec/common/vector.h"
#include "cc/codec/statistics/gradient_stats_kernels.h"

#ifdef COMPTRAIN_VECTORS

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

const StatsKernels* StatsTable() {
  static const StatsKernels kernels = {{Add<float>, Add<BF16>, Add<F16>}};
  return &kernels;
}

}  // namespace
}  // namespace comptrain

#undef V
#endif

namespace comptrain {

const StatsKernels* COMPTRAIN_NAME(StatsKernels, )() {
  return COMPTRAIN_IF_VECTORS(StatsTable());
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_STATISTICS_GRADIENT_STATS_VECTOR_H_
