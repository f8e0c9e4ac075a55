// The arithmetic common to plane and rans, 8 values at a time. Same results,
// to the bit, as quantize.h.
#ifndef TF_COMPTRAIN_CC_CODEC_STREAM_QUANTIZE_AVX2_H_
#define TF_COMPTRAIN_CC_CODEC_STREAM_QUANTIZE_AVX2_H_

#include "cc/codec/common/half_avx2.h"
#include "cc/codec/stream/quantize.h"

namespace comptrain {

// DitherOf(first), DitherOf(first + 1), ...
static inline __m256 Dither8(uint32_t first) {
  const __m256i i = _mm256_add_epi32(
      _mm256_set1_epi32(static_cast<int>(first)),
      _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  __m256i h = _mm256_mullo_epi32(
      i, _mm256_set1_epi32(static_cast<int>(kDitherMix1)));
  h = _mm256_xor_si256(h, _mm256_srli_epi32(h, 15));
  h = _mm256_mullo_epi32(
      h, _mm256_set1_epi32(static_cast<int>(kDitherMix2)));
  return _mm256_mul_ps(
      _mm256_add_ps(_mm256_cvtepi32_ps(_mm256_srai_epi32(h, 16)),
                    _mm256_set1_ps(0.5f)),
      _mm256_set1_ps(0x1p-16f));
}

// INT32_MIN, or next to it, where there is no code. first: number of the first
// value, for dither.
template <Coding kCoding>
static inline __m256i Quantize8(__m256 x, __m256 inv, uint32_t first) {
  const __m256 t = _mm256_mul_ps(x, inv);
  if (kCoding == Coding::kPlain) return _mm256_cvtps_epi32(t);
  const __m256 smallest = _mm256_set1_ps(0x1p-126f);
  const __m256 minus = _mm256_set1_ps(-0x1p-126f);
  if (kCoding == Coding::kDither) {
    const __m256i level = _mm256_cvtps_epi32(_mm256_add_ps(t, Dither8(first)));
    const __m256i q = _mm256_sub_epi32(
        level, _mm256_cmpgt_epi32(level, _mm256_set1_epi32(-1)));
    const __m256 zero = _mm256_and_ps(_mm256_cmp_ps(x, smallest, _CMP_LT_OQ),
                                      _mm256_cmp_ps(x, minus, _CMP_GT_OQ));
    return _mm256_andnot_si256(_mm256_castps_si256(zero), q);
  }
  const __m256i positive =
      _mm256_castps_si256(_mm256_cmp_ps(x, smallest, _CMP_GE_OQ));
  const __m256i negative =
      _mm256_castps_si256(_mm256_cmp_ps(x, minus, _CMP_LE_OQ));
  return _mm256_add_epi32(
      _mm256_sub_epi32(_mm256_cvttps_epi32(t), positive), negative);
}

// q >= 0 where kSigned is false.
template <Coding kCoding, bool kSigned = true>
static inline __m256 Dequantize8(__m256i q, __m256 step, uint32_t first) {
  const __m256i zero = _mm256_setzero_si256();
  if (kCoding == Coding::kDither) {
    const __m256 level = _mm256_cvtepi32_ps(
        _mm256_add_epi32(q, _mm256_cmpgt_epi32(q, zero)));
    const __m256 x_hat =
        _mm256_mul_ps(_mm256_sub_ps(level, Dither8(first)), step);
    return _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(q, zero)),
                            x_hat);
  }
  __m256 level = _mm256_cvtepi32_ps(q);
  if (kCoding == Coding::kMidRise && kSigned) {
    // sign(q) is -1, 0 or 1; half of it is exact.
    const __m256i sign = _mm256_sign_epi32(_mm256_set1_epi32(1), q);
    level = _mm256_sub_ps(level, _mm256_mul_ps(_mm256_cvtepi32_ps(sign),
                                               _mm256_set1_ps(0.5f)));
  } else if (kCoding == Coding::kMidRise) {
    level = _mm256_max_ps(_mm256_sub_ps(level, _mm256_set1_ps(0.5f)),
                          _mm256_setzero_ps());
  }
  return _mm256_mul_ps(level, step);
}

// All ones where a code does not represent its value within the bound.
template <Coding kCoding>
static inline __m256 Outside8(__m256 x, __m256i q,
                              const Quantizer& quant, uint32_t first) {
  const __m256 absolute = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MAX));
  const __m256 x_hat =
      Dequantize8<kCoding>(q, _mm256_set1_ps(quant.step), first);
  const __m256 error = _mm256_and_ps(_mm256_sub_ps(x, x_hat), absolute);
  return _mm256_or_ps(
      _mm256_cmp_ps(error, _mm256_set1_ps(quant.eb), _CMP_NLE_UQ),
      _mm256_cmp_ps(_mm256_and_ps(x_hat, absolute),
                    _mm256_set1_ps(quant.limit), _CMP_NLT_UQ));
}

// The sums of lanes l and l + 16, of l and l + 8, ...; s[k]: lanes from 8 k on.
static inline float FoldLanes(const __m256 s[4]) {
  const __m256 s8 = _mm256_add_ps(_mm256_add_ps(s[0], s[2]),
                                  _mm256_add_ps(s[1], s[3]));
  const __m128 s4 =
      _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_STREAM_QUANTIZE_AVX2_H_
