// What rans' AVX-512 encoder and decoder share: a row is one vector of 32
// u16, or two of 16 u32 in the order of LaneOfState.
#ifndef TF_COMPTRAIN_CC_CODEC_RANS_VECTOR_AVX512_H_
#define TF_COMPTRAIN_CC_CODEC_RANS_VECTOR_AVX512_H_

// GCC 12 takes the undefined vectors inside its own AVX-512 intrinsics for
// uninitialised variables.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include "cc/codec/common/half_avx512.h"
#include "cc/codec/rans/chunk.h"
#include "cc/codec/rans/rows.h"

namespace comptrain {
namespace rans {

struct Lanes512 {
  __mmask32 negative, average, median;
  bool plain;  // no lane is negative or predicted: u is q

  explicit Lanes512(const ChunkHead& h)
      : negative(h.negative),
        average(h.average),
        median(h.median),
        plain((h.negative | h.average | h.median) == 0) {}
};

constexpr __mmask32 kAll32 = ~__mmask32{0};

static inline __m512i LoadRow(const uint16_t* p) {
  return _mm512_load_si512(p);
}

static inline __m512i Median512(__m512i left, __m512i above,
                                __m512i above_left) {
  const __m512i plane =
      _mm512_sub_epi16(_mm512_add_epi16(left, above), above_left);
  return _mm512_max_epu16(
      _mm512_min_epu16(left, above),
      _mm512_min_epu16(_mm512_max_epu16(left, above), plane));
}

static inline __m512i Bias512() {
  return _mm512_set1_epi16(static_cast<short>(kCodeBias));
}

// median: Median512 of the row.
static inline __m512i Predict512(const Lanes512& lanes, __m512i left,
                                 __m512i above, __m512i median) {
  return _mm512_mask_mov_epi16(
      _mm512_mask_avg_epu16(Bias512(), lanes.average, left, above),
      lanes.median, median);
}

static inline __m512i Neighbour512(__m512i u, int shift) {
  return _mm512_min_epu16(_mm512_srli_epi16(u, shift),
                          _mm512_set1_epi16(kMaxNeighbour));
}

// Values of a ByteTables table; it must give 0 for 0.
struct Bytes128 {
  __m512i low, high;

  explicit Bytes128(const uint8_t* table)
      : low(_mm512_load_si512(table)), high(_mm512_load_si512(table + 64)) {}
  // v: u16, below 128.
  __m512i operator[](__m512i v) const {
    return _mm512_permutex2var_epi8(low, v, high);
  }
};

struct Contexts512 {
  const int shift;
  const Bytes128 context{kByteTables.context}, size{kByteTables.size};
  const __m512i of_median = _mm512_broadcast_i32x4(_mm_load_si128(
      reinterpret_cast<const __m128i*>(kByteTables.median)));

  explicit Contexts512(int model_shift) : shift(model_shift) {}

  // far: left of left and above of above; median: Median512 of the row.
  __m512i Of(const Lanes512& lanes, __m512i left, __m512i above, __m512i far,
             __m512i median) const {
    const __m512i near = _mm512_add_epi16(left, above);
    const __m512i m = _mm512_min_epu16(
        _mm512_add_epi16(_mm512_add_epi16(near, far),
                         _mm512_add_epi16(near, near)),
        _mm512_set1_epi16(127));
    if (lanes.negative == kAll32) return context[m];
    const __m512i level = _mm512_min_epu16(
        _mm512_srli_epi16(_mm512_xor_si512(median, Bias512()), shift),
        _mm512_set1_epi16(15));
    const __m512i one_sided =
        _mm512_add_epi16(size[m], _mm512_shuffle_epi8(of_median, level));
    if (lanes.negative == 0) return one_sided;
    return _mm512_mask_mov_epi16(one_sided, lanes.negative, context[m]);
  }
};

// One u16 for each token.
static inline __m512i TokenTable(const uint16_t* of) {
  return _mm512_castsi256_si512(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(of)));
}

static inline __m512i TokenBases(int shift) {
  return _mm512_slli_epi16(TokenTable(kTokenBase), shift);
}

static inline __m512i TokenRawBits(int shift) {
  const __m512i bits =
      _mm512_add_epi16(TokenTable(kTokenBits), _mm512_set1_epi16(shift));
  return _mm512_mask_mov_epi16(bits, 1u << kEscape,
                               _mm512_set1_epi16(kEscapeBits));
}

static inline __m512i Low16(__m512i row) {
  return _mm512_unpacklo_epi16(row, _mm512_setzero_si512());
}
static inline __m512i High16(__m512i row) {
  return _mm512_unpackhi_epi16(row, _mm512_setzero_si512());
}

static inline void ClearPadding512(ChunkWork* work) {
  for (int i = 0; i < kPadRows * kLanes; i += kLanes) {
    _mm512_store_si512(work->q + i, Bias512());
    _mm512_store_si512(work->u + i, _mm512_setzero_si512());
    _mm512_store_si512(work->c + i, _mm512_setzero_si512());
  }
}

}  // namespace rans
}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_RANS_VECTOR_AVX512_H_
