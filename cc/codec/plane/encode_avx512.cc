// plane's tile encoder with AVX-512 (BW, VL, DQ, VBMI) and BMI2.
#include "cc/codec/plane/tile.h"

#if defined(__AVX512VBMI__) && defined(__AVX512BW__) && defined(__BMI2__) && \
    defined(__x86_64__)

// GCC 12 takes the undefined vectors inside its own AVX-512 intrinsics for
// uninitialised variables.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include "cc/codec/plane/lanes_bmi2.h"
#include "cc/codec/plane/wide_bmi2.h"
#include "cc/codec/stream/quantize_avx512.h"
#include "cc/codec/stream/select_kernel.h"

namespace comptrain {
namespace plane {
namespace {

// A row of codes is one vector of i16. packs_epi32 leaves lane 4 c + i at
// place 8 c + i and lane 16 + 4 c + i at place 8 c + 4 + i.
struct Rows {
  __m512i q[kPixels];
};

struct Extent {
  __m512i largest, nonzero;  // u16 a place
};

inline __m512i Zigzag(__m512i q) {
  return _mm512_xor_si512(_mm512_slli_epi16(q, 1), _mm512_srai_epi16(q, 15));
}

inline void Include(__m512i codes, Extent* e) {
  e->largest = _mm512_max_epu16(e->largest, codes);
  e->nonzero = _mm512_mask_add_epi16(
      e->nonzero, _mm512_test_epi16_mask(codes, codes), e->nonzero,
      _mm512_set1_epi16(1));
}

struct Tile {
  Extent extent;
  bool negative;
  bool large;  // a code outside the safe ones
};

template <class T, Coding kCoding>
inline void QuantizeTile(const Quantizer& quant, const uint8_t* x,
                         const uint8_t* next, int64_t row_bytes, Rows* rows,
                         Tile* tile, TileSums* sums) {
  const __m512 inv = _mm512_set1_ps(quant.inv);
  const __m512i exponent = _mm512_set1_epi32(0x7f800000);
  __m512 sum_a = _mm512_setzero_ps(), sum_b = sum_a, sq_a = sum_a, sq_b = sum_a;
  __m512i smallest = _mm512_setzero_si512();
  __m512i largest = smallest, nonzero = smallest;
  int32_t count = 0;
  for (int t = 0; t < kPixels; ++t, x += row_bytes, next += row_bytes) {
    const T* row = reinterpret_cast<const T*>(x);
    PrefetchRow<T>(next);
    const __m512 a = Load16(row, kAll16), b = Load16(row + 16, kAll16);
    const uint32_t first = quant.counter + static_cast<uint32_t>(t * kLanes);
    const __m512i q =
        _mm512_packs_epi32(Quantize16<kCoding>(a, inv, first),
                           Quantize16<kCoding>(b, inv, first + 16));
    rows->q[t] = q;
    smallest = _mm512_min_epi16(smallest, q);
    largest = _mm512_max_epi16(largest, q);
    nonzero = _mm512_mask_add_epi16(nonzero, _mm512_test_epi16_mask(q, q),
                                    nonzero, _mm512_set1_epi16(1));
    sum_a = _mm512_add_ps(sum_a, a);
    sum_b = _mm512_add_ps(sum_b, b);
    sq_a = _mm512_add_ps(sq_a, _mm512_mul_ps(a, a));
    sq_b = _mm512_add_ps(sq_b, _mm512_mul_ps(b, b));
    if (kCoding == Coding::kPlain) {
      const __mmask32 set = _mm512_kunpackw(
          _mm512_test_epi32_mask(_mm512_castps_si512(b), exponent),
          _mm512_test_epi32_mask(_mm512_castps_si512(a), exponent));
      count += static_cast<int32_t>(_mm_popcnt_u32(set));
    }
  }
  tile->extent = {largest, nonzero};
  tile->negative = _mm512_movepi16_mask(smallest) != 0;
  tile->large =
      (_mm512_cmpgt_epi16_mask(largest, _mm512_set1_epi16(kLargestSafe)) |
       _mm512_cmplt_epi16_mask(smallest,
                               _mm512_set1_epi16(SmallestSafe(kCoding)))) != 0;
  if (kCoding != Coding::kPlain) {
    count = _mm512_reduce_add_epi32(
        _mm512_madd_epi16(nonzero, _mm512_set1_epi16(1)));
  }
  *sums = {count, FoldLanes(sum_a, sum_b), FoldLanes(sq_a, sq_b)};
}

// Rows in natural order, for the rare paths.
inline __m512i Natural(__m512i row) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
                                  row);
}

template <class T, Coding kCoding>
bool WithinBound(const Quantizer& quant, const uint8_t* x, int64_t row_bytes,
                 const Rows& rows) {
  __mmask16 outside = 0;
  for (int t = 0; t < kPixels; ++t, x += row_bytes) {
    const T* row = reinterpret_cast<const T*>(x);
    const __m512i q = Natural(rows.q[t]);
    const uint32_t first = quant.counter + static_cast<uint32_t>(t * kLanes);
    outside |= Outside16<kCoding>(
        Load16(row, kAll16), _mm512_cvtepi16_epi32(_mm512_castsi512_si256(q)),
        quant, first);
    outside |= Outside16<kCoding>(
        Load16(row + 16, kAll16),
        _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(q, 1)), quant,
        first + 16);
  }
  return outside == 0;
}

bool IsWide(const Extent& e) {
  return _mm512_cmpgt_epu16_mask(e.largest, _mm512_set1_epi16(255)) != 0;
}

inline __m256i NaturalBytes(__m512i places) {
  return _mm256_permutevar8x32_epi32(
      _mm512_cvtepi16_epi8(places),
      _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}

inline LaneFormats Formats(const Extent& e) {
  return ChooseFormats(NaturalBytes(e.largest), NaturalBytes(e.nonzero));
}

// Lane of place 8 c + j of a row.
constexpr int LaneAt(int c, int j) { return j < 4 ? 4 * c + j : 12 + 4 * c + j; }

struct Tables {
  uint8_t lane_of[8][64];  // piece vector j -> lane, for every byte; aligned
  uint8_t chunk[kLanes];   // lane -> 16-byte piece of the transposed tile
};

constexpr Tables MakeTables() {
  Tables t = {};
  for (int j = 0; j < 8; ++j) {
    for (int c = 0; c < 4; ++c) {
      t.chunk[LaneAt(c, j)] = static_cast<uint8_t>(4 * j + c);
      for (int i = 0; i < 16; ++i) {
        t.lane_of[j][16 * c + i] = static_cast<uint8_t>(LaneAt(c, j));
      }
    }
  }
  return t;
}

alignas(64) constexpr Tables kTables = MakeTables();

// 16 rows of narrow codes -> 8 vectors of 4 lanes x 16 pixels: vector j holds
// places j, 8 + j, 16 + j, 24 + j.
inline void Transpose(const __m512i* rows, __m512i out[8]) {
  __m512i a[8], b[8];
  for (int i = 0; i < 8; ++i) {  // two pixels a u16
    a[i] = _mm512_or_si512(rows[2 * i],
                           _mm512_slli_epi16(rows[2 * i + 1], 8));
  }
  for (int i = 0; i < 4; ++i) {  // four pixels a u32
    b[2 * i] = _mm512_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm512_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {  // eight pixels a u64
    for (int s = 0; s < 2; ++s) {
      const __m512i low = b[4 * i + s], high = b[4 * i + 2 + s];
      a[4 * i + 2 * s] = _mm512_unpacklo_epi32(low, high);
      a[4 * i + 2 * s + 1] = _mm512_unpackhi_epi32(low, high);
    }
  }
  for (int s = 0; s < 4; ++s) {
    out[2 * s] = _mm512_unpacklo_epi64(a[s], a[4 + s]);
    out[2 * s + 1] = _mm512_unpackhi_epi64(a[s], a[4 + s]);
  }
}

void PackTile(const Rows& codes, const LaneFormats& f, uint32_t* out) {
  alignas(64) uint64_t values[kLanes * 4], masks[kLanes * 4];
  alignas(64) uint16_t maps[kLanes * 2];
  const __m512i width_masks = _mm512_castsi256_si512(WidthMask(f.width));
  const __m512i is_sparse = _mm512_castsi256_si512(f.is_sparse);
  __m512i part[2][8];
  Transpose(codes.q, part[0]);
  Transpose(codes.q + 16, part[1]);
  for (int j = 0; j < 8; ++j) {
    const __m512i lanes = _mm512_load_si512(kTables.lane_of[j]);
    const __m512i width_mask = _mm512_permutexvar_epi8(lanes, width_masks);
    const __m512i sparse = _mm512_permutexvar_epi8(lanes, is_sparse);
    for (int h = 0; h < 2; ++h) {
      const __m512i v = part[h][j];
      const __mmask64 set = _mm512_test_epi8_mask(v, v);
      std::memcpy(maps + 32 * h + 4 * j, &set, sizeof set);
      // width & (set | ~sparse); in sparse lanes the value less one.
      const __m512i mask = _mm512_ternarylogic_epi64(
          width_mask, _mm512_movm_epi8(set), sparse, 0xd0);
      _mm512_store_si512(masks + 64 * h + 8 * j, mask);
      _mm512_store_si512(values + 64 * h + 8 * j, _mm512_add_epi8(v, sparse));
    }
  }
  PackLanes(f, values, masks, maps, kTables.chunk, out);
}

void StoreNatural(const Rows& codes, uint16_t natural[kTileValues]) {
  for (int t = 0; t < kPixels; ++t) {
    _mm512_storeu_si512(natural + t * kLanes, Natural(codes.q[t]));
  }
}

// Differences to the pixel before, zigzag.
void DeltaRows(const Rows& q, Rows* codes, Extent* extent) {
  __m512i before = _mm512_setzero_si512();
  *extent = {before, before};
  for (int t = 0; t < kPixels; ++t) {
    codes->q[t] = Zigzag(_mm512_sub_epi16(q.q[t], before));
    before = q.q[t];
    Include(codes->q[t], extent);
  }
}

void ZigzagRows(Rows* codes, Extent* extent) {
  extent->largest = _mm512_setzero_si512();
  for (int t = 0; t < kPixels; ++t) {
    codes->q[t] = Zigzag(codes->q[t]);
    extent->largest = _mm512_max_epu16(extent->largest, codes->q[t]);
  }
}

struct Candidate {
  bool wide;
  LaneFormats formats;
  WideFormats wide_formats;
  uint32_t words;
};

inline Candidate Measure(const Extent& extent) {
  Candidate c;
  c.wide = IsWide(extent);
  if (c.wide) {
    alignas(64) uint16_t largest[kLanes], nonzero[kLanes];
    _mm512_store_si512(largest, Natural(extent.largest));
    _mm512_store_si512(nonzero, Natural(extent.nonzero));
    c.wide_formats = ChooseWideFormats(largest, nonzero);
    c.words = c.wide_formats.words;
  } else {
    c.formats = Formats(extent);
    c.words = c.formats.words;
  }
  return c;
}

template <class T, Coding kCoding>
uint16_t EncodeTile(const Quantizer& quant, const void* x, const void* next,
                    int64_t row_bytes, uint32_t* out, TileSums* sums) {
  const uint8_t* from = static_cast<const uint8_t*>(x);
  Rows rows, delta;
  Tile tile;
  QuantizeTile<T, kCoding>(quant, from,
                                 static_cast<const uint8_t*>(next), row_bytes,
                                 &rows, &tile, sums);
  if (!(sums->sum_sq <= __FLT_MAX__) ||
      !(__builtin_fabs(sums->sum) <= __FLT_MAX__)) {
    *sums = PlainSums(quant.dtype, x, row_bytes);
  }
  if ((tile.large || quant.verify_all) &&
      !WithinBound<T, kCoding>(quant, from, row_bytes, rows)) {
    return kRaw;
  }
  const bool try_delta =
      _mm512_reduce_add_epi32(_mm512_madd_epi16(
          tile.extent.nonzero, _mm512_set1_epi16(1))) > kDeltaMinNonzero;
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
    StoreNatural(*codes, natural);
    PackWideTile(best.wide_formats, natural, out);
    flags |= kWide;
  } else {
    PackTile(*codes, best.formats, out);
  }
  return static_cast<uint16_t>(best.words | flags);
}

}  // namespace

EncodeTileFn Avx512Encoder(DType dtype, Coding coding) {
  return SelectKernel(dtype, coding, [](auto v, auto c) -> EncodeTileFn {
    return EncodeTile<decltype(v), c()>;
  });
}

}  // namespace plane
}  // namespace comptrain

#else

namespace comptrain {
namespace plane {
EncodeTileFn Avx512Encoder(DType, Coding) { return nullptr; }
}  // namespace plane
}  // namespace comptrain

#endif
