#include "cc/codec/statistics/gradient_stats_kernels.h"

#if defined(__AVX512VBMI2__)
#include "cc/codec/common/half_avx512.h"

namespace comptrain {
namespace {

inline __m512d Wide(__m512 v, int half) {
  return _mm512_cvtps_pd(half == 0 ? _mm512_castps512_ps256(v)
                                   : _mm512_extractf32x8_ps(v, 1));
}

template <class T>
void Add(const void* x, int64_t n, StatsLanes* lanes) {
  const T* in = static_cast<const T*>(x);
  __m512d sq[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
  __m512d abs[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
  int64_t nonfinite = 0;
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 v = _mm512_abs_ps(Load16(in + i, Lanes16(n - i)));
    const __m512i magnitude = _mm512_castps_si512(v);
    const __mmask16 finite = _mm512_cmplt_epi32_mask(
        magnitude, _mm512_set1_epi32(0x7f800000));
    nonfinite += 16 - __builtin_popcount(finite);
    const __m512 kept = _mm512_maskz_mov_ps(finite, v);
    for (int h = 0; h < 2; ++h) {
      const __m512d d = Wide(kept, h);
      sq[h] = _mm512_add_pd(sq[h], _mm512_mul_pd(d, d));
      abs[h] = _mm512_add_pd(abs[h], d);
    }
  }
  for (int h = 0; h < 2; ++h) {
    _mm512_storeu_pd(lanes->sum_sq + 8 * h, sq[h]);
    _mm512_storeu_pd(lanes->sum_abs + 8 * h, abs[h]);
  }
  lanes->nonfinite = nonfinite;
}

}  // namespace

const StatsKernels* StatsKernelsAvx512() {
  static const StatsKernels kernels = {{Add<float>, Add<BF16>, Add<F16>}};
  return &kernels;
}

}  // namespace comptrain

#else

namespace comptrain {
const StatsKernels* StatsKernelsAvx512() { return nullptr; }
}  // namespace comptrain

#endif
