// Eight elements of any storage type as floats, for sources compiled with
// AVX2 and F16C. Same results, to the bit, as half.h.
#ifndef TF_COMPTRAIN_CC_CODEC_COMMON_HALF_AVX2_H_
#define TF_COMPTRAIN_CC_CODEC_COMMON_HALF_AVX2_H_

#include <immintrin.h>

#include "cc/codec/common/half.h"

namespace comptrain {

static inline __m256 Load8(const float* p) { return _mm256_loadu_ps(p); }

static inline __m256 Load8(const BF16* p) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

static inline __m256 Load8(const F16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

static inline void Store8(__m256 v, float* p) { _mm256_storeu_ps(p, v); }

static inline void Store8(__m256 v, BF16* p) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i top = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd),
      16);
  const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i half = _mm256_blendv_epi8(rounded, quiet, nan);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi32(_mm256_castsi256_si128(half),
                                    _mm256_extracti128_si256(half, 1)));
}

static inline void Store8(__m256 v, F16* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_COMMON_HALF_AVX2_H_
