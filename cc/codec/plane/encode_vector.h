// plane's tile encoder over vectors, for encode_avx2.cc and encode_avx512.cc.
#pragma once

#include "cc/codec/common/vector.h"
#include "cc/codec/plane/tile.h"

#include "cc/codec/plane/lanes_bmi2.h"
#include "cc/codec/plane/wide_bmi2.h"
#include "cc/codec/stream/quantize_vector.h"
#include "cc/codec/stream/select_kernel.h"

#define V COMPTRAIN_V

namespace comptrain::plane {
namespace {

constexpr int kPerVector = 2 * kWidth;        // codes, i16
constexpr int kHalves = kLanes / kPerVector;  // vectors of codes a row
constexpr int kPieces = kWidth / 4;           // of 16 bytes a vector

// A row of codes is kHalves vectors, each of kPerVector lanes in the order that
// packs_epi32 leaves: lane 4 c + i at place 8 c + i, and lane kWidth + 4 c + i
// at place 8 c + 4 + i, i < 4.
struct Rows {
  Ints q[kHalves][kPixels];
};

// Lane of place 8 c + j of half h.
constexpr int LaneAt(int h, int c, int j) {
  return kPerVector * h + 4 * c + (j < 4 ? j : kWidth + j - 4);
}

struct Extent {
  Ints largest[kHalves], nonzero[kHalves];  // u16 a place
};

inline Ints Zigzag(Ints q) {
  return V(slli_epi16)(q, 1) ^ V(srai_epi16)(q, 15);
}

inline int32_t SumCounts(const Ints c[kHalves]) {
  Ints all = c[0];
  for (int h = 1; h < kHalves; ++h) all = V(add_epi16)(all, c[h]);
  return Sum16(all);
}

// How many of two vectors are zeros of either sign or subnormals.
inline int32_t CountZeros(Floats a, Floats b) {
  const uint32_t others = BitsOf(IsNormal(a)) | BitsOf(IsNormal(b)) << kWidth;
  return kPerVector - static_cast<int32_t>(_mm_popcnt_u32(others));
}

#if COMPTRAIN_IS_AVX512
// Lanes in natural order.
inline Ints Natural(Ints row) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
                                  row);
}
// Of places below 256.
inline __m256i NaturalBytes(const Ints places[1]) {
  return _mm256_permutevar8x32_epi32(_mm512_cvtepi16_epi8(places[0]),
                                     _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}

struct LaneTable {
  uint8_t lane_of[8][64];  // piece vector j -> lane, for every byte
};
constexpr LaneTable MakeLaneTable() {
  LaneTable t = {};
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 64; ++i) {
      t.lane_of[j][i] = static_cast<uint8_t>(LaneAt(0, i / 16, j));
    }
  }
  return t;
}
alignas(64) constexpr LaneTable kLaneTable = MakeLaneTable();

// A byte of each lane, repeated over the pieces of a vector of the transposed
// tile.
class LaneBytes {
 public:
  explicit LaneBytes(__m256i bytes) : bytes_(_mm512_castsi256_si512(bytes)) {}
  Ints At(int /*h*/, int j) const {
    return _mm512_permutexvar_epi8(LoadInts(kLaneTable.lane_of[j]), bytes_);
  }

 private:
  Ints bytes_;
};

// width & (set | ~sparse), set where v is not 0, whose bits go to *map.
inline Ints ValueMask(Ints v, Ints width, Ints sparse, uint16_t* map) {
  const __mmask64 set = _mm512_test_epi8_mask(v, v);
  std::memcpy(map, &set, sizeof set);
  return _mm512_ternarylogic_epi64(width, _mm512_movm_epi8(set), sparse, 0xd0);
}
#else
inline Ints Natural(Ints row) { return _mm256_permute4x64_epi64(row, 0xd8); }
inline __m256i NaturalBytes(const Ints places[2]) {
  return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(places[0], places[1]),
                                     _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

class LaneBytes {
 public:
  explicit LaneBytes(__m256i bytes) { StoreInts(bytes, bytes_); }
  Ints At(int h, int j) const {
    const auto byte = [&](int c) {
      return _mm_set1_epi8(static_cast<char>(bytes_[LaneAt(h, c, j)]));
    };
    return _mm256_set_m128i(byte(1), byte(0));
  }

 private:
  alignas(32) uint8_t bytes_[kLanes];
};

inline Ints ValueMask(Ints v, Ints width, Ints sparse, uint16_t* map) {
  const Ints unset = _mm256_cmpeq_epi8(v, Ints{});
  const uint32_t set = ~static_cast<uint32_t>(_mm256_movemask_epi8(unset));
  std::memcpy(map, &set, sizeof set);
  return _mm256_andnot_si256(unset & sparse, width);
}
#endif

struct Tile {
  Extent extent;
  bool negative;
  bool large;  // a code outside the safe ones
};

// How many of its values are not zero.
template <class T, Coding kCoding>
inline int32_t QuantizeTile(const Quantizer& quant, const uint8_t* x,
                            const uint8_t* next, int64_t row_bytes, Rows* rows,
                            Tile* tile) {
  RowScales scales(quant);
  Ints smallest = {};
  Extent e = {};
  int32_t zeros = 0;
  Ints numbers = Numbers(quant.counter);
  for (int t = 0; t < kPixels; ++t, x += row_bytes, next += row_bytes) {
    const T* row = reinterpret_cast<const T*>(x);
    PrefetchRow<T>(next);
    for (int h = 0; h < kHalves; ++h) {
      const int at = kPerVector * h;
      const Floats a = Load(row + at);
      const Floats b = Load(row + at + kWidth);
      const Ints q = V(packs_epi32)(
          QuantizeVector<kCoding>(a, scales.Inv(at), scales.Centre(at),
                                  numbers),
          QuantizeVector<kCoding>(b, scales.Inv(at + kWidth),
                                  scales.Centre(at + kWidth),
                                  NumbersAfter(numbers, kWidth)));
      numbers = NumbersAfter(numbers, kPerVector);
      rows->q[h][t] = q;
      smallest = V(min_epi16)(smallest, q);
      e.largest[h] = V(max_epi16)(e.largest[h], q);
      e.nonzero[h] = IncrementNotZero16(e.nonzero[h], q);
      if (kCoding == Coding::kPlain) zeros += CountZeros(a, b);
    }
    scales.NextRow();
  }
  tile->extent = e;
  tile->negative = AnyGreater16(Ints{}, smallest);
  Ints most = e.largest[0];
  for (int h = 1; h < kHalves; ++h) most = V(max_epi16)(most, e.largest[h]);
  tile->large =
      AnyGreater16(most, All16(kLargestSafe - quant.centre)) ||
      AnyGreater16(All16(SmallestSafe(kCoding) + quant.centre), smallest);
  return kCoding != Coding::kPlain ? SumCounts(e.nonzero) : kTileValues - zeros;
}

template <class T, Coding kCoding>
bool WithinBound(const Quantizer& quant, const uint8_t* x, int64_t row_bytes,
                 const Rows& rows) {
  Mask outside = {};
  RowScales scales(quant);
  Ints numbers = Numbers(quant.counter);
  for (int t = 0; t < kPixels; ++t, x += row_bytes, scales.NextRow()) {
    const T* row = reinterpret_cast<const T*>(x);
    for (int h = 0; h < kHalves; ++h) {
      const Ints q = Natural(rows.q[h][t]);
      const int at = kPerVector * h;
      outside |=
          OutsideBound<kCoding>(Load(row + at), V(cvtepi16_epi32)(Low(q)),
                                quant, scales, at, numbers);
      numbers = NumbersAfter(numbers, kWidth);
      outside |= OutsideBound<kCoding>(Load(row + at + kWidth),
                                       V(cvtepi16_epi32)(High(q)), quant,
                                       scales, at + kWidth, numbers);
      numbers = NumbersAfter(numbers, kWidth);
    }
  }
  return !Any(outside);
}

// lane -> 16-byte piece of the transposed tile.
struct Tables {
  uint8_t chunk[kLanes];
};

constexpr Tables MakeTables() {
  Tables t = {};
  for (int h = 0; h < kHalves; ++h) {
    for (int c = 0; c < kPieces; ++c) {
      for (int j = 0; j < 8; ++j) {
        t.chunk[LaneAt(h, c, j)] =
            static_cast<uint8_t>(kPieces * (8 * h + j) + c);
      }
    }
  }
  return t;
}

constexpr Tables kTables = MakeTables();

// 16 rows of narrow codes -> 8 vectors of kPieces lanes x 16 pixels: vector j
// holds places j, 8 + j, ...
inline void Transpose(const Ints* rows, Ints out[8]) {
  Ints a[8], b[8];
  for (int i = 0; i < 8; ++i) {  // two pixels a u16
    a[i] = rows[2 * i] | V(slli_epi16)(rows[2 * i + 1], 8);
  }
  for (int i = 0; i < 4; ++i) {  // four pixels a u32
    b[2 * i] = V(unpacklo_epi16)(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = V(unpackhi_epi16)(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {  // eight pixels a u64
    for (int s = 0; s < 2; ++s) {
      const Ints low = b[4 * i + s], high = b[4 * i + 2 + s];
      a[4 * i + 2 * s] = V(unpacklo_epi32)(low, high);
      a[4 * i + 2 * s + 1] = V(unpackhi_epi32)(low, high);
    }
  }
  for (int s = 0; s < 4; ++s) {
    out[2 * s] = V(unpacklo_epi64)(a[s], a[4 + s]);
    out[2 * s + 1] = V(unpackhi_epi64)(a[s], a[4 + s]);
  }
}

void PackTile(const Rows& codes, const LaneFormats& f, uint32_t* out) {
  alignas(64) uint64_t values[kLanes * 4], masks[kLanes * 4];
  alignas(64) uint16_t maps[kLanes * 2];
  const LaneBytes width_masks(WidthMask(f.width)), is_sparse(f.is_sparse);
  for (int h = 0; h < kHalves; ++h) {
    Ints part[2][8];
    Transpose(codes.q[h], part[0]);
    Transpose(codes.q[h] + 16, part[1]);
    for (int j = 0; j < 8; ++j) {
      const Ints width_mask = width_masks.At(h, j);
      const Ints sparse = is_sparse.At(h, j);
      const int at = kPieces * (8 * h + j);
      for (int p = 0; p < 2; ++p) {
        // In sparse lanes the value less one, and no bits where it is zero.
        const Ints v = part[p][j];
        StoreInts(ValueMask(v, width_mask, sparse, maps + 32 * p + at),
                  masks + 64 * p + 2 * at);
        StoreInts(V(add_epi8)(v, sparse), values + 64 * p + 2 * at);
      }
    }
  }
  PackLanes(f, values, masks, maps, kTables.chunk, out);
}

// Differences to the pixel before, zigzag.
void DeltaRows(const Rows& q, Rows* codes, Extent* e) {
  *e = {};
  for (int h = 0; h < kHalves; ++h) {
    Ints before = {};
    for (int t = 0; t < kPixels; ++t) {
      const Ints u = Zigzag(V(sub_epi16)(q.q[h][t], before));
      before = q.q[h][t];
      codes->q[h][t] = u;
      e->largest[h] = V(max_epu16)(e->largest[h], u);
      e->nonzero[h] = IncrementNotZero16(e->nonzero[h], u);
    }
  }
}

void ZigzagRows(Rows* codes, Extent* e) {
  for (int h = 0; h < kHalves; ++h) {
    e->largest[h] = Ints{};
    for (int t = 0; t < kPixels; ++t) {
      const Ints u = Zigzag(codes->q[h][t]);
      codes->q[h][t] = u;
      e->largest[h] = V(max_epu16)(e->largest[h], u);
    }
  }
}

struct Candidate {
  bool wide;
  LaneFormats formats;
  WideFormats wide_formats;
  uint32_t words;
};

inline Candidate Measure(const Extent& e) {
  Ints high = {};
  for (int h = 0; h < kHalves; ++h) {
    high = high | V(srli_epi16)(e.largest[h], 8);
  }
  Candidate c;
  c.wide = AnyGreater16(high, Ints{});
  if (c.wide) {
    alignas(64) uint16_t largest[kLanes], nonzero[kLanes];
    for (int h = 0; h < kHalves; ++h) {
      StoreInts(Natural(e.largest[h]), largest + kPerVector * h);
      StoreInts(Natural(e.nonzero[h]), nonzero + kPerVector * h);
    }
    c.wide_formats = ChooseWideFormats(largest, nonzero);
    c.words = c.wide_formats.words;
  } else {
    c.formats = ChooseFormats(NaturalBytes(e.largest), NaturalBytes(e.nonzero));
    c.words = c.formats.words;
  }
  return c;
}

template <class T, Coding kCoding>
uint16_t EncodeTile(const Quantizer& quant, const void* x, const void* next,
                    int64_t row_bytes, uint32_t* out, int32_t* nonzero) {
  const uint8_t* from = static_cast<const uint8_t*>(x);
  Rows rows, delta;
  Tile tile;
  *nonzero = QuantizeTile<T, kCoding>(
      quant, from, static_cast<const uint8_t*>(next), row_bytes, &rows, &tile);
  if ((tile.large || quant.verify_all) &&
      !WithinBound<T, kCoding>(quant, from, row_bytes, rows)) {
    return kRaw;
  }
  const bool try_delta = SumCounts(tile.extent.nonzero) > kDeltaMinNonzero;
  Extent delta_extent;
  if (try_delta) DeltaRows(rows, &delta, &delta_extent);
  uint16_t flags = 0;
  if (tile.negative) {
    ZigzagRows(&rows, &tile.extent);
    flags = kZigzag;
  }
  Candidate best = Measure(tile.extent);
  const Rows* codes = &rows;
  if (try_delta) {
    const Candidate other = Measure(delta_extent);
    if (other.words < best.words) {
      best = other;
      codes = &delta;
      flags = kDelta | kZigzag;
    }
  }
  if (best.words == 0) return 0;
  if (best.wide) {
    uint16_t natural[kTileValues];
    for (int t = 0; t < kPixels; ++t) {
      for (int h = 0; h < kHalves; ++h) {
        StoreInts(Natural(codes->q[h][t]),
                  natural + t * kLanes + kPerVector * h);
      }
    }
    PackWideTile(best.wide_formats, natural, out);
    flags |= kWide;
  } else {
    PackTile(*codes, best.formats, out);
  }
  return static_cast<uint16_t>(best.words | flags);
}

}  // namespace

EncodeTileFn COMPTRAIN_NAME(Encoder)(DType dtype, Coding coding) {
  return SelectKernel(dtype, coding, [](auto v, auto c) -> EncodeTileFn {
    return EncodeTile<decltype(v), c()>;
  });
}

}  // namespace comptrain::plane

#undef V
