#include "cc/codec/statistics/gradient_stats_kernels.h"

#if defined(__AVX2__)
#include "cc/codec/common/half_avx2.h"

namespace comptrain {
namespace {

// Four lanes of a block: their sums of squares and of magnitudes.
struct Quad {
  __m256d sq = _mm256_setzero_pd();
  __m256d abs = _mm256_setzero_pd();

  void Add(__m128 v) {
    const __m256d d = _mm256_cvtps_pd(v);
    sq = _mm256_add_pd(sq, _mm256_mul_pd(d, d));
    abs = _mm256_add_pd(abs, d);
  }
};

// Magnitudes of eight elements, 0 for those that are not finite, and how many
// these were.
inline __m256 FiniteMagnitudes(__m256 v, int64_t* nonfinite) {
  const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(v),
                                             _mm256_set1_epi32(0x7fffffff));
  const __m256i finite =
      _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), magnitude);
  const auto mask =
      static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(finite)));
  if (mask != 0xff) *nonfinite += 8 - __builtin_popcount(mask);
  return _mm256_castsi256_ps(_mm256_and_si256(magnitude, finite));
}

template <class T>
void Add(const void* x, int64_t n, StatsLanes* lanes) {
  const T* in = static_cast<const T*>(x);
  Quad quads[4];
  int64_t nonfinite = 0;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int h = 0; h < 2; ++h) {
      const __m256 v = FiniteMagnitudes(Load8(in + i + 8 * h), &nonfinite);
      quads[2 * h].Add(_mm256_castps256_ps128(v));
      quads[2 * h + 1].Add(_mm256_extractf128_ps(v, 1));
    }
  }
  for (int q = 0; q < 4; ++q) {
    _mm256_storeu_pd(lanes->sum_sq + 4 * q, quads[q].sq);
    _mm256_storeu_pd(lanes->sum_abs + 4 * q, quads[q].abs);
  }
  lanes->nonfinite = nonfinite;
  AddStatsTail(in, i, n, lanes);
}

}  // namespace

const StatsKernels* StatsKernelsAvx2() {
  static const StatsKernels kernels = {{Add<float>, Add<BF16>, Add<F16>}};
  return &kernels;
}

}  // namespace comptrain

#else

namespace comptrain {
const StatsKernels* StatsKernelsAvx2() { return nullptr; }
}  // namespace comptrain

#endif
