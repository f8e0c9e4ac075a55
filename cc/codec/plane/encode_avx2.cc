// plane's tile encoder with AVX2 and BMI2.
#include <initializer_list>

#include "cc/codec/plane/tile.h"

#if defined(__AVX2__) && defined(__BMI2__) && defined(__F16C__) && \
    defined(__x86_64__)

#include "cc/codec/plane/lanes_bmi2.h"
#include "cc/codec/plane/wide_bmi2.h"
#include "cc/codec/stream/quantize_avx2.h"
#include "cc/codec/stream/select_kernel.h"

namespace comptrain {
namespace plane {
namespace {

// A row of codes is two vectors of i16, q[0] for lanes 0-15 and q[1] for lanes
// 16-31. packs_epi32 leaves lane 4 c + i at place 8 c + i and lane
// 8 + 4 c + i at place 8 c + 4 + i, i < 4.
struct Rows {
  __m256i q[2][kPixels];
};

struct Extent {
  __m256i largest[2], nonzero[2];  // u16 a place
};

inline __m256i Zigzag(__m256i q) {
  return _mm256_xor_si256(_mm256_slli_epi16(q, 1), _mm256_srai_epi16(q, 15));
}

// One more where the code is not zero.
inline __m256i CountNonzero(__m256i count, __m256i codes) {
  const __m256i zero = _mm256_cmpeq_epi16(codes, _mm256_setzero_si256());
  return _mm256_add_epi16(count,
                          _mm256_add_epi16(zero, _mm256_set1_epi16(1)));
}

// The sum of 32 counts.
inline int32_t SumCounts(const __m256i c[2]) {
  const __m256i sums = _mm256_madd_epi16(_mm256_add_epi16(c[0], c[1]),
                                         _mm256_set1_epi16(1));
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sums),
                            _mm256_extracti128_si256(sums, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

inline bool Any(__m256i mask) { return !_mm256_testz_si256(mask, mask); }

struct Tile {
  Extent extent;
  bool negative;
  bool large;  // a code outside the safe ones
};

template <class T, Coding kCoding>
inline void QuantizeTile(const Quantizer& quant, const uint8_t* x,
                         const uint8_t* next, int64_t row_bytes, Rows* rows,
                         Tile* tile, TileSums* sums) {
  const __m256 inv = _mm256_set1_ps(quant.inv);
  const __m256i zero = _mm256_setzero_si256();
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  __m256 sum[4] = {}, sum_sq[4] = {};
  __m256i smallest = zero;
  Extent e = {{zero, zero}, {zero, zero}};
  int32_t zeros = 0;
  for (int t = 0; t < kPixels; ++t, x += row_bytes, next += row_bytes) {
    const T* row = reinterpret_cast<const T*>(x);
    PrefetchRow<T>(next);
    for (int h = 0; h < 2; ++h) {
      const __m256 a = Load8(row + 16 * h), b = Load8(row + 16 * h + 8);
      const uint32_t first =
          quant.counter + static_cast<uint32_t>(t * kLanes + 16 * h);
      const __m256i q = _mm256_packs_epi32(
          Quantize8<kCoding>(a, inv, first),
          Quantize8<kCoding>(b, inv, first + 8));
      rows->q[h][t] = q;
      smallest = _mm256_min_epi16(smallest, q);
      e.largest[h] = _mm256_max_epi16(e.largest[h], q);
      e.nonzero[h] = CountNonzero(e.nonzero[h], q);
      sum[2 * h] = _mm256_add_ps(sum[2 * h], a);
      sum[2 * h + 1] = _mm256_add_ps(sum[2 * h + 1], b);
      sum_sq[2 * h] = _mm256_add_ps(sum_sq[2 * h], _mm256_mul_ps(a, a));
      sum_sq[2 * h + 1] =
          _mm256_add_ps(sum_sq[2 * h + 1], _mm256_mul_ps(b, b));
      if (kCoding == Coding::kPlain) {
        for (const __m256 v : {a, b}) {
          const __m256i z = _mm256_cmpeq_epi32(
              _mm256_and_si256(_mm256_castps_si256(v), exponent), zero);
          zeros += _mm_popcnt_u32(static_cast<unsigned>(
              _mm256_movemask_ps(_mm256_castsi256_ps(z))));
        }
      }
    }
  }
  tile->extent = e;
  tile->negative = Any(_mm256_cmpgt_epi16(zero, smallest));
  const __m256i most = _mm256_max_epi16(e.largest[0], e.largest[1]);
  tile->large = Any(_mm256_or_si256(
      _mm256_cmpgt_epi16(most, _mm256_set1_epi16(kLargestSafe)),
      _mm256_cmpgt_epi16(_mm256_set1_epi16(SmallestSafe(kCoding)), smallest)));
  const int32_t nonzero =
      kCoding != Coding::kPlain ? SumCounts(e.nonzero) : kTileValues - zeros;
  *sums = {nonzero, FoldLanes(sum), FoldLanes(sum_sq)};
}

// 16 lanes of a row in natural order, for the rare paths.
inline __m256i Natural(__m256i row) {
  return _mm256_permute4x64_epi64(row, 0xd8);
}

template <class T, Coding kCoding>
bool WithinBound(const Quantizer& quant, const uint8_t* x, int64_t row_bytes,
                 const Rows& rows) {
  __m256 outside = _mm256_setzero_ps();
  for (int t = 0; t < kPixels; ++t, x += row_bytes) {
    const T* row = reinterpret_cast<const T*>(x);
    for (int h = 0; h < 2; ++h) {
      const __m256i q = Natural(rows.q[h][t]);
      const uint32_t first =
          quant.counter + static_cast<uint32_t>(t * kLanes + 16 * h);
      const __m256 a = Outside8<kCoding>(
          Load8(row + 16 * h),
          _mm256_cvtepi16_epi32(_mm256_castsi256_si128(q)), quant, first);
      const __m256 b = Outside8<kCoding>(
          Load8(row + 16 * h + 8),
          _mm256_cvtepi16_epi32(_mm256_extracti128_si256(q, 1)), quant,
          first + 8);
      outside = _mm256_or_ps(outside, _mm256_or_ps(a, b));
    }
  }
  return _mm256_movemask_ps(outside) == 0;
}

// u16 places of both halves, all below 256, to bytes in natural order.
inline __m256i NaturalBytes(const __m256i places[2]) {
  return _mm256_permutevar8x32_epi32(
      _mm256_packus_epi16(places[0], places[1]),
      _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Lane of place 8 c + j of half h.
constexpr int LaneAt(int h, int c, int j) {
  return 16 * h + 4 * c + (j < 4 ? j : j + 4);
}

// lane -> 16-byte piece of the transposed tile.
struct Tables {
  uint8_t chunk[kLanes];
};

constexpr Tables MakeTables() {
  Tables t = {};
  for (int h = 0; h < 2; ++h) {
    for (int c = 0; c < 2; ++c) {
      for (int j = 0; j < 8; ++j) {
        t.chunk[LaneAt(h, c, j)] = static_cast<uint8_t>(16 * h + 2 * j + c);
      }
    }
  }
  return t;
}

constexpr Tables kTables = MakeTables();

// 16 rows of narrow codes -> 8 vectors of 2 lanes x 16 pixels: vector j holds
// places j and 8 + j.
inline void Transpose(const __m256i* rows, __m256i out[8]) {
  __m256i a[8], b[8];
  for (int i = 0; i < 8; ++i) {  // two pixels a u16
    a[i] = _mm256_or_si256(rows[2 * i],
                           _mm256_slli_epi16(rows[2 * i + 1], 8));
  }
  for (int i = 0; i < 4; ++i) {  // four pixels a u32
    b[2 * i] = _mm256_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm256_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {  // eight pixels a u64
    for (int s = 0; s < 2; ++s) {
      const __m256i low = b[4 * i + s], high = b[4 * i + 2 + s];
      a[4 * i + 2 * s] = _mm256_unpacklo_epi32(low, high);
      a[4 * i + 2 * s + 1] = _mm256_unpackhi_epi32(low, high);
    }
  }
  for (int s = 0; s < 4; ++s) {
    out[2 * s] = _mm256_unpacklo_epi64(a[s], a[4 + s]);
    out[2 * s + 1] = _mm256_unpackhi_epi64(a[s], a[4 + s]);
  }
}

// A byte of each of two lanes, repeated over their pieces.
inline __m256i Spread(const uint8_t* bytes, int lane, int other) {
  return _mm256_set_m128i(_mm_set1_epi8(static_cast<char>(bytes[other])),
                          _mm_set1_epi8(static_cast<char>(bytes[lane])));
}

void PackTile(const Rows& codes, const LaneFormats& f, uint32_t* out) {
  alignas(32) uint64_t values[kLanes * 4], masks[kLanes * 4];
  alignas(32) uint16_t maps[kLanes * 2];
  alignas(32) uint8_t width_masks[kLanes], is_sparse[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(width_masks),
                     WidthMask(f.width));
  _mm256_store_si256(reinterpret_cast<__m256i*>(is_sparse), f.is_sparse);
  const __m256i zero = _mm256_setzero_si256();
  for (int h = 0; h < 2; ++h) {
    __m256i part[2][8];
    Transpose(codes.q[h], part[0]);
    Transpose(codes.q[h] + 16, part[1]);
    for (int j = 0; j < 8; ++j) {
      const int lane = LaneAt(h, 0, j), other = LaneAt(h, 1, j);
      const __m256i width_mask = Spread(width_masks, lane, other);
      const __m256i sparse = Spread(is_sparse, lane, other);
      for (int p = 0; p < 2; ++p) {
        const __m256i v = part[p][j];
        const __m256i unset = _mm256_cmpeq_epi8(v, zero);
        const uint32_t map = ~static_cast<uint32_t>(_mm256_movemask_epi8(unset));
        const int at = 16 * h + 2 * j;  // chunk
        std::memcpy(maps + 32 * p + at, &map, sizeof map);
        // In sparse lanes the value less one, and no bits where it is zero.
        const __m256i mask = _mm256_andnot_si256(
            _mm256_and_si256(unset, sparse), width_mask);
        _mm256_store_si256(
            reinterpret_cast<__m256i*>(masks + 64 * p + 2 * at), mask);
        _mm256_store_si256(
            reinterpret_cast<__m256i*>(values + 64 * p + 2 * at),
            _mm256_add_epi8(v, sparse));
      }
    }
  }
  PackLanes(f, values, masks, maps, kTables.chunk, out);
}

void StoreNatural(const Rows& codes, uint16_t natural[kTileValues]) {
  for (int t = 0; t < kPixels; ++t) {
    for (int h = 0; h < 2; ++h) {
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(natural + t * kLanes + 16 * h),
          Natural(codes.q[h][t]));
    }
  }
}

// Differences to the pixel before, zigzag.
void DeltaRows(const Rows& q, Rows* codes, Extent* e) {
  const __m256i zero = _mm256_setzero_si256();
  *e = {{zero, zero}, {zero, zero}};
  for (int h = 0; h < 2; ++h) {
    __m256i before = zero;
    for (int t = 0; t < kPixels; ++t) {
      const __m256i u = Zigzag(_mm256_sub_epi16(q.q[h][t], before));
      before = q.q[h][t];
      codes->q[h][t] = u;
      e->largest[h] = _mm256_max_epu16(e->largest[h], u);
      e->nonzero[h] = CountNonzero(e->nonzero[h], u);
    }
  }
}

void ZigzagRows(Rows* codes, Extent* e) {
  for (int h = 0; h < 2; ++h) {
    e->largest[h] = _mm256_setzero_si256();
    for (int t = 0; t < kPixels; ++t) {
      const __m256i u = Zigzag(codes->q[h][t]);
      codes->q[h][t] = u;
      e->largest[h] = _mm256_max_epu16(e->largest[h], u);
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
  Candidate c;
  c.wide = Any(_mm256_srli_epi16(_mm256_or_si256(e.largest[0], e.largest[1]),
                                 8));
  if (c.wide) {
    alignas(32) uint16_t largest[kLanes], nonzero[kLanes];
    for (int h = 0; h < 2; ++h) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(largest) + h,
                         Natural(e.largest[h]));
      _mm256_store_si256(reinterpret_cast<__m256i*>(nonzero) + h,
                         Natural(e.nonzero[h]));
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
    StoreNatural(*codes, natural);
    PackWideTile(best.wide_formats, natural, out);
    flags |= kWide;
  } else {
    PackTile(*codes, best.formats, out);
  }
  return static_cast<uint16_t>(best.words | flags);
}

}  // namespace

EncodeTileFn Avx2Encoder(DType dtype, Coding coding) {
  return SelectKernel(dtype, coding, [](auto v, auto c) -> EncodeTileFn {
    return EncodeTile<decltype(v), c()>;
  });
}

}  // namespace plane
}  // namespace comptrain

#else

namespace comptrain {
namespace plane {
EncodeTileFn Avx2Encoder(DType, Coding) { return nullptr; }
}  // namespace plane
}  // namespace comptrain

#endif
