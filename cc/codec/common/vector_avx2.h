// Vectors of AVX2: see vector.h. Conversions give the bits of half.h.
#pragma once

#include <immintrin.h>

#include "cc/codec/common/half.h"

#define COMPTRAIN_IS_AVX512 0
#define COMPTRAIN_NAME(name) name##Avx2
#define COMPTRAIN_V(name) _mm256_##name

namespace comptrain {

using Floats = __m256;
using Ints = __m256i;
using HalfInts = __m128i;  // half as many bits
using Mask = __m256i;      // all ones where true

constexpr int kWidth = 8;  // floats of a vector

static inline Floats AsFloats(Ints v) { return _mm256_castsi256_ps(v); }
static inline Ints AsInts(Floats v) { return _mm256_castps_si256(v); }

static inline Ints LoadInts(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
static inline void StoreInts(Ints v, void* p) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}
static inline HalfInts LoadHalf(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
static inline void StoreHalf(HalfInts v, void* p) {
  _mm_storeu_si128(static_cast<__m128i*>(p), v);
}
static inline HalfInts Low(Ints v) { return _mm256_castsi256_si128(v); }
static inline HalfInts High(Ints v) { return _mm256_extracti128_si256(v, 1); }

static inline Floats Load(const float* p) { return _mm256_loadu_ps(p); }
static inline Floats Load(const BF16* p) {
  return AsFloats(_mm256_slli_epi32(_mm256_cvtepu16_epi32(LoadHalf(p)), 16));
}
static inline Floats Load(const F16* p) { return _mm256_cvtph_ps(LoadHalf(p)); }

static inline void Store(Floats v, float* p) { _mm256_storeu_ps(p, v); }
static inline void Store(Floats v, BF16* p) {
  const Ints u = AsInts(v), top = _mm256_srli_epi32(u, 16);
  const Ints odd = top & _mm256_set1_epi32(1);
  const Ints rounded = _mm256_srli_epi32(
      _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd),
      16);
  const Ints nan = AsInts(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const Ints half =
      _mm256_blendv_epi8(rounded, top | _mm256_set1_epi32(0x40), nan);
  StoreHalf(_mm_packus_epi32(Low(half), High(half)), p);
}
static inline void Store(Floats v, F16* p) {
  StoreHalf(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT), p);
}

static inline Ints Iota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
static inline Floats Abs(Floats v) {
  return AsFloats(AsInts(v) & _mm256_set1_epi32(INT32_MAX));
}

template <int kPredicate>
static inline Mask Compare(Floats a, Floats b) {
  return AsInts(_mm256_cmp_ps(a, b, kPredicate));
}
static inline Mask Greater(Ints a, Ints b) { return _mm256_cmpgt_epi32(a, b); }
static inline Mask NotZero(Ints v) { return ~_mm256_cmpeq_epi32(v, __m256i{}); }
// Neither zero nor subnormal.
static inline Mask IsNormal(Floats v) {
  return _mm256_cmpgt_epi32(AsInts(v) & _mm256_set1_epi32(INT32_MAX),
                            _mm256_set1_epi32(0x007fffff));
}
static inline bool Any(Mask m) { return !_mm256_testz_si256(m, m); }
// A bit an element.
static inline uint32_t BitsOf(Mask m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(AsFloats(m)));
}
static inline Mask MaskOf(uint32_t bits) {
  const Ints bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const Ints all = _mm256_set1_epi32(static_cast<int>(bits));
  return _mm256_cmpeq_epi32(all & bit, bit);
}
// v where the mask says so, else 0.
static inline Ints Keep(Ints v, Mask m) { return v & m; }
static inline Floats Keep(Floats v, Mask m) { return AsFloats(AsInts(v) & m); }
static inline Floats Choose(Mask m, Floats then, Floats otherwise) {
  return _mm256_blendv_ps(otherwise, then, AsFloats(m));
}
// One more, or less, where the mask says so.
static inline Ints Increment(Ints v, Mask m) { return _mm256_sub_epi32(v, m); }
static inline Ints Decrement(Ints v, Mask m) { return _mm256_add_epi32(v, m); }

// level, less half of the sign of q.
static inline Floats LessHalfSign(Floats level, Ints q) {
  const Ints sign = _mm256_sign_epi32(_mm256_set1_epi32(1), q);
  return level - _mm256_cvtepi32_ps(sign) * _mm256_set1_ps(0.5f);
}

// The upper half of each element, and `low`.
static inline Ints WithLow16(Ints v, int low) {
  return _mm256_blend_epi16(v, _mm256_set1_epi32(low), 0x55);
}

// Of 16-bit integers.
static inline bool AnyGreater16(Ints a, Ints b) {
  return Any(_mm256_cmpgt_epi16(a, b));
}
static inline Ints IncrementNotZero16(Ints v, Ints of) {
  const Ints zero = _mm256_cmpeq_epi16(of, __m256i{});
  return _mm256_add_epi16(v, _mm256_add_epi16(zero, _mm256_set1_epi16(1)));
}
// v where the bits are set, else 0.
static inline Ints KeepBits16(Ints v, uint32_t bits) {
  const Ints bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512,
                                     1024, 2048, 4096, 8192, 16384, INT16_MIN);
  const Ints all = _mm256_set1_epi16(static_cast<int16_t>(bits));
  return v & _mm256_cmpeq_epi16(all & bit, bit);
}
// The sum of small 16-bit integers.
static inline int32_t Sum16(Ints v) {
  const Ints sums = _mm256_madd_epi16(v, _mm256_set1_epi16(1));
  __m128i s = _mm_add_epi32(Low(sums), High(sums));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// Halves of a vector as doubles.
using Doubles = __m256d;
static inline Doubles LowDoubles(Floats v) {
  return _mm256_cvtps_pd(_mm256_castps256_ps128(v));
}
static inline Doubles HighDoubles(Floats v) {
  return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
}

// The sums of values l and l + 16, of l and l + 8, ... of 32: s[k] has those
// from 8 k on.
static inline float FoldLanes(const Floats s[4]) {
  const __m256 s8 = (s[0] + s[2]) + (s[1] + s[3]);
  const __m128 s4 = _mm256_castps256_ps128(s8) + _mm256_extractf128_ps(s8, 1);
  const __m128 s2 = s4 + _mm_movehl_ps(s4, s4);
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

}  // namespace comptrain
