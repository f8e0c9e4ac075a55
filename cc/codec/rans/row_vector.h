// Rows of a chunk as vectors, for rans' vector sources: kHalves vectors of u16,
// or twice as many of u32 in the order of LaneOfState.
#pragma once

#include "cc/codec/common/vector.h"
#include "cc/codec/rans/chunk.h"
#include "cc/codec/rans/rows.h"

#define V COMPTRAIN_V

namespace comptrain::rans {
namespace {

constexpr int kHalves = kLanes / (2 * kWidth);

struct Row {
  Ints v[kHalves];
};

inline Row LoadRow(const uint16_t* p) {
  Row r;
  for (int h = 0; h < kHalves; ++h) r.v[h] = LoadInts(p + 2 * kWidth * h);
  return r;
}
inline void StoreRow(const Row& r, uint16_t* p) {
  for (int h = 0; h < kHalves; ++h) StoreInts(r.v[h], p + 2 * kWidth * h);
}

inline Ints Bias() { return All16(kCodeBias); }

inline Ints Median(Ints left, Ints above, Ints above_left) {
  const Ints plane = V(sub_epi16)(V(add_epi16)(left, above), above_left);
  return V(max_epu16)(V(min_epu16)(left, above),
                      V(min_epu16)(V(max_epu16)(left, above), plane));
}

inline Ints Neighbour(Ints u, int shift) {
  return V(min_epu16)(V(srli_epi16)(u, shift), All16(kMaxNeighbour));
}

// The median as a context has it: how large it is, at most 15.
inline Ints Level(Ints median, int shift) {
  return V(min_epu16)(V(srli_epi16)(median ^ Bias(), shift), All16(15));
}

inline void ClearPadding(ChunkWork* work) {
  for (int i = 0; i < kPadRows * kLanes; i += 2 * kWidth) {
    StoreInts(Bias(), work->q + i);
    StoreInts(Ints{}, work->u + i);
    StoreInts(Ints{}, work->c + i);
  }
}

#if COMPTRAIN_IS_AVX512
struct LaneSets {
  __mmask32 negative, average, median;
  bool plain;  // no lane is negative or predicted: u is q

  explicit LaneSets(const ChunkHead& h)
      : negative(h.negative),
        average(h.average),
        median(h.median),
        plain((h.negative | h.average | h.median) == 0) {}
};

// median: of the row.
inline Ints Predict(const LaneSets& lanes, int /*h*/, Ints left, Ints above,
                    Ints median) {
  return _mm512_mask_mov_epi16(
      _mm512_mask_avg_epu16(Bias(), lanes.average, left, above), lanes.median,
      median);
}

// Eight values from p, eight from r.
inline Floats LoadEights(const float* p, const float* r) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(p)),
                            _mm256_loadu_ps(r), 1);
}
template <class T>
inline Floats LoadEights(const T* p, const T* r) {
  return FromStorage(
      _mm256_set_m128i(_mm_loadu_si128(reinterpret_cast<const __m128i*>(r)),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
      T());
}
// Eight values to p, eight to r.
inline void StoreEights(Floats v, float* p, float* r) {
  _mm256_storeu_ps(p, _mm512_castps512_ps256(v));
  _mm256_storeu_ps(r, _mm512_extractf32x8_ps(v, 1));
}
template <class T>
inline void StoreEights(Floats v, T* p, T* r) {
  const HalfInts half = ToStorage(v, T());
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(half));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(r),
                   _mm256_extracti128_si256(half, 1));
}

// Values of a ByteTables table; it must give 0 for 0.
struct Bytes128 {
  Ints low, high;

  explicit Bytes128(const uint8_t* table)
      : low(_mm512_load_si512(table)), high(_mm512_load_si512(table + 64)) {}
  // v: u16, below 128.
  Ints operator[](Ints v) const {
    return _mm512_permutex2var_epi8(low, v, high);
  }
};

struct Contexts {
  const int shift;
  const Bytes128 context{kByteTables.context}, size{kByteTables.size};
  const Ints of_median = _mm512_broadcast_i32x4(
      _mm_load_si128(reinterpret_cast<const __m128i*>(kByteTables.median)));

  explicit Contexts(int model_shift) : shift(model_shift) {}

  // median: of the row.
  Row Of(const LaneSets& lanes, const Row& left, const Row& above,
         const Row& left2, const Row& above2, const Row& median) const {
    const Ints near = _mm512_add_epi16(left.v[0], above.v[0]);
    const Ints far = _mm512_add_epi16(left2.v[0], above2.v[0]);
    const Ints m =
        _mm512_min_epu16(_mm512_add_epi16(_mm512_add_epi16(near, far),
                                          _mm512_add_epi16(near, near)),
                         _mm512_set1_epi16(127));
    if (lanes.negative == ~__mmask32{0}) return {{context[m]}};
    const Ints level = Level(median.v[0], shift);
    const Ints one_sided =
        _mm512_add_epi16(size[m], _mm512_shuffle_epi8(of_median, level));
    if (lanes.negative == 0) return {{one_sided}};
    return {{_mm512_mask_mov_epi16(one_sided, lanes.negative, context[m])}};
  }
};

// One u16 for each token.
inline Ints TokenTable(const uint16_t* of) {
  return _mm512_castsi256_si512(LoadHalf(of));
}

inline Ints TokenBases(int shift) {
  return _mm512_slli_epi16(TokenTable(kTokenBase), shift);
}

inline Ints TokenRawBits(int shift) {
  const Ints bits =
      _mm512_add_epi16(TokenTable(kTokenBits), _mm512_set1_epi16(shift));
  return _mm512_mask_mov_epi16(bits, 1u << kEscape,
                               _mm512_set1_epi16(kEscapeBits));
}

inline Ints Low16(Ints row) { return _mm512_unpacklo_epi16(row, Ints{}); }
inline Ints High16(Ints row) { return _mm512_unpackhi_epi16(row, Ints{}); }
#else
// u32: v[0] and v[1] are states 0-15, v[2] and v[3] are states 16-31.
struct States {
  Ints v[4];
};

inline States Unpack(const Row& r) {
  const Ints zero = Ints{};
  return {{_mm256_unpacklo_epi16(r.v[0], zero),
           _mm256_unpacklo_epi16(r.v[1], zero),
           _mm256_unpackhi_epi16(r.v[0], zero),
           _mm256_unpackhi_epi16(r.v[1], zero)}};
}
// Of values below 2^16.
inline Row Pack(const States& s) {
  return {{_mm256_packus_epi32(s.v[0], s.v[2]),
           _mm256_packus_epi32(s.v[1], s.v[3])}};
}

// Rows of values below 256 as one vector of bytes, and back.
inline Ints ToBytes(const Row& r) {
  return _mm256_packus_epi16(r.v[0], r.v[1]);
}
inline Row FromBytes(Ints low, Ints high) {
  return {{_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)}};
}

// All ones in the 16-bit lanes whose bit is set.
inline Row LaneMask(uint32_t bits) {
  const Ints ones = All16(-1);
  return {{KeepBits16(ones, bits), KeepBits16(ones, bits >> 16)}};
}

struct LaneSets {
  Row one_sided, average, median;
  Ints one_sided_bytes;
  bool any_negative, any_one_sided;

  explicit LaneSets(const ChunkHead& h)
      : one_sided(LaneMask(~h.negative)),
        average(LaneMask(h.average)),
        median(LaneMask(h.median)),
        one_sided_bytes(_mm256_packs_epi16(one_sided.v[0], one_sided.v[1])),
        any_negative(h.negative != 0),
        any_one_sided(~h.negative != 0) {}
};

// median: of the row.
inline Ints Predict(const LaneSets& lanes, int h, Ints left, Ints above,
                    Ints median) {
  const Ints p = _mm256_blendv_epi8(Bias(), _mm256_avg_epu16(left, above),
                                    lanes.average.v[h]);
  return _mm256_blendv_epi8(p, median, lanes.median.v[h]);
}

// a > b, unsigned.
inline Ints Greater16(Ints a, Ints b) {
  return _mm256_cmpgt_epi16(a ^ Bias(), b ^ Bias());
}

// How many of the edges are at most v: bytes below 128.
template <int kCount>
inline Ints CountEdges(Ints v, const int8_t (&edges)[kCount]) {
  Ints count = Ints{};
  for (int i = 0; i < kCount; ++i) {
    count = _mm256_sub_epi8(
        count, _mm256_cmpgt_epi8(
                   v, _mm256_set1_epi8(static_cast<char>(edges[i] - 1))));
  }
  return count;
}

inline Ints BytesTable(const uint8_t* of) {
  return _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(of)));
}

struct Contexts {
  const int shift;
  const Ints median_table = BytesTable(kByteTables.median);

  explicit Contexts(int model_shift) : shift(model_shift) {}

  // Bytes. median: of the row.
  Ints Of(const LaneSets& lanes, const Row& left, const Row& above,
          const Row& left2, const Row& above2, const Row& median) const {
    static constexpr int8_t kEdges[15] = {1,  3,  4,  6,  9,  12, 15, 19,
                                          25, 33, 41, 53, 67, 85, 111};
    static_assert(kEdges[14] == kContextEdges[14] + 1, "exceeded by");
    static constexpr int8_t kSizes[3] = {3, 9, 25};
    static_assert(kSizes[2] == kSizeEdges[2] + 1, "exceeded by");
    const Ints near = _mm256_add_epi8(ToBytes(left), ToBytes(above));
    const Ints far = _mm256_add_epi8(ToBytes(left2), ToBytes(above2));
    const Ints m = _mm256_min_epu8(_mm256_add_epi8(_mm256_add_epi8(near, far),
                                                   _mm256_add_epi8(near, near)),
                                   _mm256_set1_epi8(127));
    if (!lanes.any_one_sided) return CountEdges(m, kEdges);
    Row level;
    for (int h = 0; h < 2; ++h) {
      level.v[h] = Level(median.v[h], shift);
    }
    const Ints positive =
        _mm256_add_epi8(CountEdges(m, kSizes),
                        _mm256_shuffle_epi8(median_table, ToBytes(level)));
    if (!lanes.any_negative) return positive;
    return _mm256_blendv_epi8(CountEdges(m, kEdges), positive,
                              lanes.one_sided_bytes);
  }
};

// Raw bits and first codes by token, for one shift.
struct TokenTables {
  Ints bits, base_low, base_high;

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
  Ints Bits(Ints tokens) const { return _mm256_shuffle_epi8(bits, tokens); }
  Row Bases(Ints tokens) const {
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

inline Ints Move8(Ints v, const uint8_t (&places)[8]) {
  return _mm256_permutevar8x32_epi32(
      v, _mm256_cvtepu8_epi32(
             _mm_loadl_epi64(reinterpret_cast<const __m128i*>(places))));
}
#endif

}  // namespace
}  // namespace comptrain::rans

#undef V
