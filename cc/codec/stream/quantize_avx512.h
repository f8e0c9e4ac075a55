// The arithmetic common to plane and rans, 16 values at a time. Same results,
// to the bit, as quantize.h.
#ifndef TF_COMPTRAIN_CC_CODEC_STREAM_QUANTIZE_AVX512_H_
#define TF_COMPTRAIN_CC_CODEC_STREAM_QUANTIZE_AVX512_H_

#include "cc/codec/common/half_avx512.h"
#include "cc/codec/stream/quantize.h"

namespace comptrain {

// DitherOf(first), DitherOf(first + 1), ...
static inline __m512 Dither16(uint32_t first) {
  const __m512i i = _mm512_add_epi32(
      _mm512_set1_epi32(static_cast<int>(first)),
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  __m512i h = _mm512_mullo_epi32(
      i, _mm512_set1_epi32(static_cast<int>(kDitherMix1)));
  h = _mm512_xor_si512(h, _mm512_srli_epi32(h, 15));
  h = _mm512_mullo_epi32(
      h, _mm512_set1_epi32(static_cast<int>(kDitherMix2)));
  return _mm512_mul_ps(
      _mm512_add_ps(_mm512_cvtepi32_ps(_mm512_srai_epi32(h, 16)),
                    _mm512_set1_ps(0.5f)),
      _mm512_set1_ps(0x1p-16f));
}

// INT32_MIN, or next to it, where there is no code. first: number of the first
// value, for dither.
template <Coding kCoding>
static inline __m512i Quantize16(__m512 x, __m512 inv, uint32_t first) {
  const __m512 t = _mm512_mul_ps(x, inv);
  if (kCoding == Coding::kPlain) return _mm512_cvtps_epi32(t);
  const __m512i one = _mm512_set1_epi32(1);
  const __m512 smallest = _mm512_set1_ps(0x1p-126f);
  if (kCoding == Coding::kDither) {
    const __m512i level = _mm512_cvtps_epi32(_mm512_add_ps(t, Dither16(first)));
    const __m512i q = _mm512_mask_add_epi32(
        level, _mm512_cmpge_epi32_mask(level, _mm512_setzero_si512()), level,
        one);
    return _mm512_maskz_mov_epi32(
        _mm512_cmp_ps_mask(_mm512_abs_ps(x), smallest, _CMP_NLT_UQ), q);
  }
  const __m512i truncated = _mm512_cvttps_epi32(t);
  const __m512i q = _mm512_mask_add_epi32(
      truncated, _mm512_cmp_ps_mask(x, smallest, _CMP_GE_OQ), truncated, one);
  return _mm512_mask_sub_epi32(
      q,
      _mm512_cmp_ps_mask(x, _mm512_sub_ps(_mm512_setzero_ps(), smallest),
                         _CMP_LE_OQ),
      q, one);
}

template <Coding kCoding>
static inline __m512 Dequantize16(__m512i q, __m512 step, uint32_t first) {
  if (kCoding == Coding::kDither) {
    const __m512 level = _mm512_cvtepi32_ps(_mm512_mask_sub_epi32(
        q, _mm512_cmpgt_epi32_mask(q, _mm512_setzero_si512()), q,
        _mm512_set1_epi32(1)));
    return _mm512_maskz_mul_ps(_mm512_test_epi32_mask(q, q),
                               _mm512_sub_ps(level, Dither16(first)), step);
  }
  __m512 level = _mm512_cvtepi32_ps(q);
  if (kCoding == Coding::kMidRise) {
    const __m512i sign = _mm512_and_si512(q, _mm512_set1_epi32(INT32_MIN));
    const __m512i half = _mm512_or_si512(
        sign, _mm512_castps_si512(_mm512_set1_ps(0.5f)));
    level = _mm512_mask_sub_ps(level, _mm512_test_epi32_mask(q, q), level,
                               _mm512_castsi512_ps(half));
  }
  return _mm512_mul_ps(level, step);
}

// Values that their code does not represent within the bound.
template <Coding kCoding>
static inline __mmask16 Outside16(__m512 x, __m512i q,
                                  const Quantizer& quant,
                                  uint32_t first) {
  const __m512 x_hat =
      Dequantize16<kCoding>(q, _mm512_set1_ps(quant.step), first);
  const __m512 error = _mm512_abs_ps(_mm512_sub_ps(x, x_hat));
  return _mm512_cmp_ps_mask(error, _mm512_set1_ps(quant.eb), _CMP_NLE_UQ) |
         _mm512_cmp_ps_mask(_mm512_abs_ps(x_hat), _mm512_set1_ps(quant.limit),
                            _CMP_NLT_UQ);
}

// The sums of lanes l and l + 16, of l and l + 8, ...
static inline float FoldLanes(__m512 a, __m512 b) {
  const __m512 s = _mm512_add_ps(a, b);
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(s),
                                  _mm512_extractf32x8_ps(s, 1));
  const __m128 s4 =
      _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_STREAM_QUANTIZE_AVX512_H_
