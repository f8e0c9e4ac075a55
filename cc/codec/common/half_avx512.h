// Up to sixteen elements of any storage type as floats, for sources compiled
// with AVX-512. Same results, to the bit, as half.h. Elements whose bit of
// `lanes` is 0 are not touched in memory and read as 0.
#ifndef TF_COMPTRAIN_CC_CODEC_COMMON_HALF_AVX512_H_
#define TF_COMPTRAIN_CC_CODEC_COMMON_HALF_AVX512_H_

// GCC 12 takes the undefined vectors inside its own AVX-512 intrinsics for
// uninitialised variables.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "cc/codec/common/half.h"

namespace comptrain {

constexpr __mmask16 kAll16 = 0xffff;

// The first n lanes of a vector, all of them when there are enough elements.
static inline __mmask16 Lanes16(int64_t n) {
  return n >= 16 ? kAll16 : static_cast<__mmask16>((1u << n) - 1);
}
static inline __mmask32 Lanes32(int64_t n) {
  return n >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((1u << n) - 1);
}

static inline __m512 Load16(const float* p, __mmask16 lanes) {
  return _mm512_maskz_loadu_ps(lanes, p);
}

static inline __m512 Load16(const BF16* p, __mmask16 lanes) {
  const __m256i v = _mm256_maskz_loadu_epi16(lanes, p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

static inline __m512 Load16(const F16* p, __mmask16 lanes) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, p));
}

// Eight elements from p, eight from r.
static inline __m512 LoadEights(const float* p, const float* r) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(p)),
                            _mm256_loadu_ps(r), 1);
}
static inline __m256i LoadHalves(const void* p, const void* r) {
  return _mm256_set_m128i(_mm_loadu_si128(static_cast<const __m128i*>(r)),
                          _mm_loadu_si128(static_cast<const __m128i*>(p)));
}
static inline __m512 LoadEights(const BF16* p, const BF16* r) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(LoadHalves(p, r)), 16));
}
static inline __m512 LoadEights(const F16* p, const F16* r) {
  return _mm512_cvtph_ps(LoadHalves(p, r));
}

static inline void Store16(__m512 v, float* p, __mmask16 lanes) {
  _mm512_mask_storeu_ps(p, lanes, v);
}

static inline __m256i ToBF16(__m512 v) {
  const __m512i u = _mm512_castps_si512(v);
  const __m512i top = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd),
      16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(
      _mm512_mask_or_epi32(rounded, nan, top, _mm512_set1_epi32(0x40)));
}

static inline __m256i ToF16(__m512 v) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

static inline void Store16(__m512 v, BF16* p, __mmask16 lanes) {
  _mm256_mask_storeu_epi16(p, lanes, ToBF16(v));
}

static inline void Store16(__m512 v, F16* p, __mmask16 lanes) {
  _mm256_mask_storeu_epi16(p, lanes, ToF16(v));
}

// Eight elements to p, eight to r.
static inline void StoreEights(__m512 v, float* p, float* r) {
  _mm256_storeu_ps(p, _mm512_castps512_ps256(v));
  _mm256_storeu_ps(r, _mm512_extractf32x8_ps(v, 1));
}
static inline void StoreHalves(__m256i v, void* p, void* r) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(v));
  _mm_storeu_si128(static_cast<__m128i*>(r), _mm256_extracti128_si256(v, 1));
}
static inline void StoreEights(__m512 v, BF16* p, BF16* r) {
  StoreHalves(ToBF16(v), p, r);
}
static inline void StoreEights(__m512 v, F16* p, F16* r) {
  StoreHalves(ToF16(v), p, r);
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_COMMON_HALF_AVX512_H_
