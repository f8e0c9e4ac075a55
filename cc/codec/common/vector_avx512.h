// Vectors of AVX-512 (BW, VL, DQ, VBMI, VBMI2): see vector.h. Conversions give
// the bits of half.h.
#pragma once

// GCC 12 takes the undefined vectors inside its own AVX-512 intrinsics for
// uninitialised variables.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "cc/codec/common/half.h"

#define COMPTRAIN_IS_AVX512 1
#define COMPTRAIN_NAME(name) name##Avx512
#define COMPTRAIN_V(name) _mm512_##name

namespace comptrain {

using Floats = __m512;
using Ints = __m512i;
using HalfInts = __m256i;  // half as many bits
using Mask = __mmask16;

constexpr int kWidth = 16;  // floats of a vector

static inline Floats AsFloats(Ints v) { return _mm512_castsi512_ps(v); }
static inline Ints AsInts(Floats v) { return _mm512_castps_si512(v); }

static inline Ints LoadInts(const void* p) { return _mm512_loadu_si512(p); }
static inline void StoreInts(Ints v, void* p) { _mm512_storeu_si512(p, v); }
static inline HalfInts LoadHalf(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
static inline void StoreHalf(HalfInts v, void* p) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}
static inline HalfInts Low(Ints v) { return _mm512_castsi512_si256(v); }
static inline HalfInts High(Ints v) { return _mm512_extracti64x4_epi64(v, 1); }

static inline Floats FromStorage(HalfInts v, BF16) {
  return AsFloats(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}
static inline Floats FromStorage(HalfInts v, F16) { return _mm512_cvtph_ps(v); }
static inline HalfInts ToStorage(Floats v, BF16) {
  const Ints u = AsInts(v), top = _mm512_srli_epi32(u, 16);
  const Ints odd = top & _mm512_set1_epi32(1);
  const Ints rounded = _mm512_srli_epi32(
      _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd),
      16);
  return _mm512_cvtepi32_epi16(
      _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), top,
                           _mm512_set1_epi32(0x40)));
}
static inline HalfInts ToStorage(Floats v, F16) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

static inline Floats Load(const float* p) { return _mm512_loadu_ps(p); }
template <class T>
static inline Floats Load(const T* p) {
  return FromStorage(LoadHalf(p), T());
}
static inline void Store(Floats v, float* p) { _mm512_storeu_ps(p, v); }
template <class T>
static inline void Store(Floats v, T* p) {
  StoreHalf(ToStorage(v, T()), p);
}

static inline Ints Iota() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
                           15);
}
static inline Floats Abs(Floats v) { return _mm512_abs_ps(v); }

template <int kPredicate>
static inline Mask Compare(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a, b, kPredicate);
}
static inline Mask Greater(Ints a, Ints b) {
  return _mm512_cmpgt_epi32_mask(a, b);
}
static inline Mask NotZero(Ints v) { return _mm512_test_epi32_mask(v, v); }
// Neither zero nor subnormal.
static inline Mask IsNormal(Floats v) {
  return _mm512_test_epi32_mask(AsInts(v), _mm512_set1_epi32(0x7f800000));
}
static inline bool Any(Mask m) { return m != 0; }
// A bit an element.
static inline uint32_t BitsOf(Mask m) { return m; }
static inline Mask MaskOf(uint32_t bits) { return static_cast<Mask>(bits); }
// v where the mask says so, else 0.
static inline Ints Keep(Ints v, Mask m) { return _mm512_maskz_mov_epi32(m, v); }
static inline Floats Keep(Floats v, Mask m) {
  return _mm512_maskz_mov_ps(m, v);
}
static inline Floats Choose(Mask m, Floats then, Floats otherwise) {
  return _mm512_mask_blend_ps(m, otherwise, then);
}
// One more, or less, where the mask says so.
static inline Ints Increment(Ints v, Mask m) {
  return _mm512_mask_add_epi32(v, m, v, _mm512_set1_epi32(1));
}
static inline Ints Decrement(Ints v, Mask m) {
  return _mm512_mask_sub_epi32(v, m, v, _mm512_set1_epi32(1));
}

// level, less half of the sign of q.
static inline Floats LessHalfSign(Floats level, Ints q) {
  const Ints half =
      (q & _mm512_set1_epi32(INT32_MIN)) | AsInts(_mm512_set1_ps(0.5f));
  return _mm512_mask_sub_ps(level, NotZero(q), level, AsFloats(half));
}

// The upper half of each element, and `low`.
static inline Ints WithLow16(Ints v, int low) {
  return _mm512_ternarylogic_epi32(v, _mm512_set1_epi32(~0xffff),
                                   _mm512_set1_epi32(low), 0xea);
}

// Of 16-bit integers.
static inline bool AnyGreater16(Ints a, Ints b) {
  return _mm512_cmpgt_epi16_mask(a, b) != 0;
}
static inline Ints IncrementNotZero16(Ints v, Ints of) {
  return _mm512_mask_add_epi16(v, _mm512_test_epi16_mask(of, of), v,
                               _mm512_set1_epi16(1));
}
// v where the bits are set, else 0.
static inline Ints KeepBits16(Ints v, uint32_t bits) {
  return _mm512_maskz_mov_epi16(bits, v);
}
// The sum of small 16-bit integers.
static inline int32_t Sum16(Ints v) {
  return _mm512_reduce_add_epi32(_mm512_madd_epi16(v, _mm512_set1_epi16(1)));
}

// Halves of a vector as doubles.
using Doubles = __m512d;
static inline Doubles LowDoubles(Floats v) {
  return _mm512_cvtps_pd(_mm512_castps512_ps256(v));
}
static inline Doubles HighDoubles(Floats v) {
  return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
}

// The sums of values l and l + 16, of l and l + 8, ... of 32: s[k] has those
// from 16 k on.
static inline float FoldLanes(const Floats s[2]) {
  const __m512 s16 = s[0] + s[1];
  const __m256 s8 =
      _mm512_castps512_ps256(s16) + _mm512_extractf32x8_ps(s16, 1);
  const __m128 s4 = _mm256_castps256_ps128(s8) + _mm256_extractf128_ps(s8, 1);
  const __m128 s2 = s4 + _mm_movehl_ps(s4, s4);
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

}  // namespace comptrain
