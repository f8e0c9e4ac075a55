// What rans' AVX2 encoder and decoder share: a row is two vectors of 16
// u16, or four of 8 u32 in the order of LaneOfState.
#ifndef TF_COMPTRAIN_CC_CODEC_RANS_VECTOR_AVX2_H_
#define TF_COMPTRAIN_CC_CODEC_RANS_VECTOR_AVX2_H_

#include "cc/codec/common/half_avx2.h"
#include "cc/codec/rans/chunk.h"
#include "cc/codec/rans/rows.h"

namespace comptrain {
namespace rans {

// u16 lanes 0-15 and 16-31.
struct Row256 {
  __m256i v[2];
};

// u32: v[0] and v[1] are states 0-15, v[2] and v[3] are states 16-31.
struct States256 {
  __m256i v[4];
};

static inline Row256 LoadRow(const uint16_t* p) {
  const __m256i* from = reinterpret_cast<const __m256i*>(p);
  return {{_mm256_load_si256(from), _mm256_load_si256(from + 1)}};
}
static inline void StoreRow(const Row256& r, uint16_t* p) {
  __m256i* to = reinterpret_cast<__m256i*>(p);
  _mm256_store_si256(to, r.v[0]);
  _mm256_store_si256(to + 1, r.v[1]);
}

static inline States256 Unpack(const Row256& r) {
  const __m256i zero = _mm256_setzero_si256();
  return {{_mm256_unpacklo_epi16(r.v[0], zero),
           _mm256_unpacklo_epi16(r.v[1], zero),
           _mm256_unpackhi_epi16(r.v[0], zero),
           _mm256_unpackhi_epi16(r.v[1], zero)}};
}
// Of values below 2^16.
static inline Row256 Pack(const States256& s) {
  return {{_mm256_packus_epi32(s.v[0], s.v[2]),
           _mm256_packus_epi32(s.v[1], s.v[3])}};
}

// Rows of values below 256 as one vector of bytes, and back.
static inline __m256i ToBytes(const Row256& r) {
  return _mm256_packus_epi16(r.v[0], r.v[1]);
}
static inline Row256 FromBytes(__m256i low, __m256i high) {
  return {{_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)}};
}

static inline __m256i Bias256() {
  return _mm256_set1_epi16(static_cast<short>(kCodeBias));
}

// All ones in the 16-bit lanes whose bit is set.
static inline Row256 LaneMask(uint32_t bits) {
  const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512,
                                        1024, 2048, 4096, 8192, 16384,
                                        static_cast<short>(0x8000));
  Row256 r;
  for (int h = 0; h < 2; ++h) {
    const __m256i all =
        _mm256_set1_epi16(static_cast<short>(bits >> 16 * h & 0xffff));
    r.v[h] = _mm256_cmpeq_epi16(_mm256_and_si256(all, bit), bit);
  }
  return r;
}

struct Lanes256 {
  Row256 one_sided, average, median;
  bool any_negative, any_one_sided;

  explicit Lanes256(const ChunkHead& h)
      : one_sided(LaneMask(~h.negative)),
        average(LaneMask(h.average)),
        median(LaneMask(h.median)),
        any_negative(h.negative != 0),
        any_one_sided(~h.negative != 0) {}
};

static inline __m256i Median256(__m256i left, __m256i above,
                                __m256i above_left) {
  const __m256i plane =
      _mm256_sub_epi16(_mm256_add_epi16(left, above), above_left);
  return _mm256_max_epu16(
      _mm256_min_epu16(left, above),
      _mm256_min_epu16(_mm256_max_epu16(left, above), plane));
}

// median: Median256 of half h of the row.
static inline __m256i Predict256(const Lanes256& lanes, int h, __m256i left,
                                 __m256i above, __m256i median) {
  const __m256i p = _mm256_blendv_epi8(
      Bias256(), _mm256_avg_epu16(left, above), lanes.average.v[h]);
  return _mm256_blendv_epi8(p, median, lanes.median.v[h]);
}

static inline __m256i Neighbour256(__m256i u, int shift) {
  return _mm256_min_epu16(_mm256_srli_epi16(u, shift),
                          _mm256_set1_epi16(kMaxNeighbour));
}

// a > b, unsigned.
static inline __m256i Greater(__m256i a, __m256i b) {
  return _mm256_cmpgt_epi16(_mm256_xor_si256(a, Bias256()),
                            _mm256_xor_si256(b, Bias256()));
}

// How many of the edges are at most v: bytes below 128.
template <int kCount>
static inline __m256i CountEdges(__m256i v, const int8_t (&edges)[kCount]) {
  __m256i count = _mm256_setzero_si256();
  for (int i = 0; i < kCount; ++i) {
    count = _mm256_sub_epi8(
        count, _mm256_cmpgt_epi8(
                   v, _mm256_set1_epi8(static_cast<char>(edges[i] - 1))));
  }
  return count;
}

static inline __m256i BytesTable(const uint8_t* of) {
  return _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(of)));
}

struct Contexts256 {
  const Lanes256& lanes;
  const int shift;
  const __m256i one_sided =
      _mm256_packs_epi16(lanes.one_sided.v[0], lanes.one_sided.v[1]);
  const __m256i median_table = BytesTable(kByteTables.median);

  Contexts256(const Lanes256& l, int model_shift)
      : lanes(l), shift(model_shift) {}

  // Bytes. median: Median256 of the row.
  __m256i Of(const Row256& left, const Row256& above, const Row256& left2,
             const Row256& above2, const Row256& median) const {
    static constexpr int8_t kEdges[15] = {1,  3,  4,  6,  9,  12, 15, 19,
                                          25, 33, 41, 53, 67, 85, 111};
    static_assert(kEdges[14] == kContextEdges[14] + 1, "exceeded by");
    static constexpr int8_t kSizes[3] = {3, 9, 25};
    static_assert(kSizes[2] == kSizeEdges[2] + 1, "exceeded by");
    const __m256i near = _mm256_add_epi8(ToBytes(left), ToBytes(above));
    const __m256i far = _mm256_add_epi8(ToBytes(left2), ToBytes(above2));
    const __m256i m = _mm256_min_epu8(
        _mm256_add_epi8(_mm256_add_epi8(near, far),
                        _mm256_add_epi8(near, near)),
        _mm256_set1_epi8(127));
    if (!lanes.any_one_sided) return CountEdges(m, kEdges);
    Row256 level;
    for (int h = 0; h < 2; ++h) {
      level.v[h] = _mm256_min_epu16(
          _mm256_srli_epi16(_mm256_xor_si256(median.v[h], Bias256()), shift),
          _mm256_set1_epi16(15));
    }
    const __m256i positive =
        _mm256_add_epi8(CountEdges(m, kSizes),
                        _mm256_shuffle_epi8(median_table, ToBytes(level)));
    if (!lanes.any_negative) return positive;
    return _mm256_blendv_epi8(CountEdges(m, kEdges), positive, one_sided);
  }
};

// Raw bits and first codes by token, for one shift.
struct TokenTables {
  __m256i bits, base_low, base_high;

  explicit TokenTables(int shift) {
    uint8_t bits_of[kTokens], low[kTokens], high[kTokens];
    for (int k = 0; k < kTokens; ++k) {
      bits_of[k] = static_cast<uint8_t>(k == kEscape ? kEscapeBits
                                                     : kTokenBits[k] + shift);
      low[k] = static_cast<uint8_t>(kTokenBase[k] << shift & 0xff);
      high[k] = static_cast<uint8_t>(kTokenBase[k] << shift >> 8);
    }
    bits = BytesTable(bits_of);
    base_low = BytesTable(low);
    base_high = BytesTable(high);
  }
  // tokens: bytes.
  __m256i Bits(__m256i tokens) const {
    return _mm256_shuffle_epi8(bits, tokens);
  }
  Row256 Bases(__m256i tokens) const {
    return FromBytes(_mm256_shuffle_epi8(base_low, tokens),
                     _mm256_shuffle_epi8(base_high, tokens));
  }
};

// For a mask of 8 states: where the chosen ones come from when they move to
// the front, and where each one comes from when they move back.
struct MoveTables {
  uint8_t gather[256][8], scatter[256][8];
};

constexpr MoveTables MakeMoveTables() {
  MoveTables t = {};
  for (int m = 0; m < 256; ++m) {
    int n = 0;
    for (int i = 0; i < 8; ++i) {
      t.scatter[m][i] = static_cast<uint8_t>(n & 7);
      if (m >> i & 1) t.gather[m][n++] = static_cast<uint8_t>(i);
    }
  }
  return t;
}

constexpr MoveTables kMoveTables = MakeMoveTables();

static inline __m256i Move8(__m256i v, const uint8_t (&places)[8]) {
  return _mm256_permutevar8x32_epi32(
      v, _mm256_cvtepu8_epi32(
             _mm_loadl_epi64(reinterpret_cast<const __m128i*>(places))));
}

static inline unsigned Mask8(__m256i v) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(v)));
}

static inline void ClearPadding256(ChunkWork* work) {
  const __m256i zero = _mm256_setzero_si256();
  for (int i = 0; i < kPadRows * kLanes; i += kLanes) {
    StoreRow({{Bias256(), Bias256()}}, work->q + i);
    StoreRow({{zero, zero}}, work->u + i);
    StoreRow({{zero, zero}}, work->c + i);
  }
}

}  // namespace rans
}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_RANS_VECTOR_AVX2_H_
