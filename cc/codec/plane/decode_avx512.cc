// plane's tile decoder and ReLU mask with AVX-512 and BMI2.
#include "cc/codec/plane/tile.h"

#if defined(__AVX512VBMI__) && defined(__AVX512BW__) && defined(__BMI2__) && \
    defined(__x86_64__)

// GCC 12 takes the undefined vectors inside its own AVX-512 intrinsics for
// uninitialised variables.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include "cc/codec/plane/lanes_bmi2.h"
#include "cc/codec/plane/mask_bmi2.h"
#include "cc/codec/stream/quantize_avx512.h"
#include "cc/codec/stream/select_kernel.h"

namespace comptrain {
namespace plane {
namespace {

// Where UnpackLanes puts 16 pixels of a lane: a vector then holds lanes i,
// 4 + i, 8 + i, 12 + i of a half tile, ready for 4 x 4 transposes.
struct Tables {
  uint8_t chunk[kLanes][2];
};

constexpr Tables MakeTables() {
  Tables t = {};
  for (int l = 0; l < kLanes; ++l) {
    for (int h = 0; h < 2; ++h) {
      t.chunk[l][h] = static_cast<uint8_t>((l / 16 * 2 + h) * 16 + l % 4 * 4 +
                                           l % 16 / 4);
    }
  }
  return t;
}

constexpr Tables kTables = MakeTables();

// Which bits of every code of lane l are stored: four u64 at 4 l.
inline void MakeMasks(const LaneFormats& f, const uint32_t* maps,
                      uint64_t* masks) {
  alignas(32) uint8_t width_masks[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(width_masks),
                     WidthMask(f.width));
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t map = f.dense >> l & 1 ? ~0u : maps[l];
    _mm256_store_si256(
        reinterpret_cast<__m256i*>(masks + 4 * l),
        _mm256_maskz_set1_epi8(map, static_cast<char>(width_masks[l])));
  }
}

// 4 pixels of 16 lanes a vector: blocks[k] holds pixels 4 k .. 4 k + 3.
inline void Transpose(const uint64_t* values, __m512i blocks[8]) {
  for (int h = 0; h < 2; ++h) {
    const __m512i* in = reinterpret_cast<const __m512i*>(values) + 4 * h;
    const __m512i v0 = _mm512_load_si512(in), v1 = _mm512_load_si512(in + 1);
    const __m512i v2 = _mm512_load_si512(in + 2),
                  v3 = _mm512_load_si512(in + 3);
    const __m512i a = _mm512_unpacklo_epi32(v0, v1);
    const __m512i b = _mm512_unpackhi_epi32(v0, v1);
    const __m512i c = _mm512_unpacklo_epi32(v2, v3);
    const __m512i d = _mm512_unpackhi_epi32(v2, v3);
    blocks[4 * h] = _mm512_unpacklo_epi64(a, c);
    blocks[4 * h + 1] = _mm512_unpackhi_epi64(a, c);
    blocks[4 * h + 2] = _mm512_unpacklo_epi64(b, d);
    blocks[4 * h + 3] = _mm512_unpackhi_epi64(b, d);
  }
}

inline __m512i Unzigzag(__m512i u) {
  const __m512i odd = _mm512_and_si512(u, _mm512_set1_epi32(1));
  return _mm512_xor_si512(_mm512_srli_epi32(u, 1),
                          _mm512_sub_epi32(_mm512_setzero_si512(), odd));
}

// Calls value(codes, h, at) for both halves of each row, in order, `at` the
// place of the first value in the tile, and stores the results: whole rows at a
// time, which memory likes best.
template <class T, class Value>
inline void EmitRows(const __m512i blocks[2][8], uint8_t* to,
                     int64_t row_bytes, const Value& value) {
  for (int k = 0; k < 8; ++k) {
    const __m512i a = blocks[0][k], b = blocks[1][k];
    const __m512i rows[4][2] = {
        {a, b},
        {_mm512_srli_epi32(a, 8), _mm512_srli_epi32(b, 8)},
        {_mm512_srli_epi32(a, 16), _mm512_srli_epi32(b, 16)},
        {_mm512_srli_epi32(a, 24), _mm512_srli_epi32(b, 24)}};
    for (int i = 0; i < 4; ++i, to += row_bytes) {
      T* row = reinterpret_cast<T*>(to);
      const uint32_t at = static_cast<uint32_t>((4 * k + i) * kLanes);
      Store16(value(rows[i][0], 0, at), row, kAll16);
      Store16(value(rows[i][1], 1, at + 16), row + 16, kAll16);
    }
  }
}

// The 32 values codes below 32 stand for.
template <Coding kCoding>
inline void MakeValues(const Quantizer& quant, bool zigzag, __m512 table[2]) {
  const __m512 step = _mm512_set1_ps(quant.step);
  __m512i code = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
                                   13, 14, 15);
  for (int i = 0; i < 2; ++i) {
    table[i] =
        Dequantize16<kCoding>(zigzag ? Unzigzag(code) : code, step, 0);
    code = _mm512_add_epi32(code, _mm512_set1_epi32(16));
  }
}

// True when every code is below 32.
inline bool AllSmall(const LaneFormats& f) {
  const __m256i most =
      _mm256_add_epi8(_mm256_set1_epi8(5), f.is_sparse);
  return _mm256_movemask_epi8(_mm256_cmpgt_epi8(f.width, most)) == 0;
}

template <class T, Coding kCoding>
inline void EmitTile(const Quantizer& quant, uint16_t entry, bool small,
                     const __m512i blocks[2][8], uint8_t* out,
                     int64_t row_bytes) {
  const __m512 step = _mm512_set1_ps(quant.step);
  const __m512i byte = _mm512_set1_epi32(255);
  if (entry & kDelta) {
    __m512i q[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    EmitRows<T>(blocks, out, row_bytes, [&](__m512i v, int h, uint32_t at) {
      q[h] = _mm512_add_epi32(q[h], Unzigzag(_mm512_and_si512(v, byte)));
      return Dequantize16<kCoding>(q[h], step, quant.counter + at);
    });
  } else if (small && kCoding != Coding::kDither) {
    __m512 table[2];
    MakeValues<kCoding>(quant, (entry & kZigzag) != 0, table);
    EmitRows<T>(blocks, out, row_bytes, [&](__m512i v, int, uint32_t) {
      return _mm512_permutex2var_ps(table[0], v, table[1]);
    });
  } else if (entry & kZigzag) {
    EmitRows<T>(blocks, out, row_bytes, [&](__m512i v, int, uint32_t at) {
      return Dequantize16<kCoding>(Unzigzag(_mm512_and_si512(v, byte)), step,
                                   quant.counter + at);
    });
  } else {
    EmitRows<T>(blocks, out, row_bytes, [&](__m512i v, int, uint32_t at) {
      return Dequantize16<kCoding>(_mm512_and_si512(v, byte), step,
                                   quant.counter + at);
    });
  }
}

template <class T>
void FillZeros(uint8_t* out, int64_t row_bytes) {
  for (int t = 0; t < kPixels; ++t, out += row_bytes) {
    std::memset(out, 0, kLanes * sizeof(T));
  }
}

template <class T, Coding kCoding>
bool DecodeWide(const Quantizer& quant, uint16_t entry, const uint32_t* words,
                uint8_t* out, int64_t row_bytes) {
  int16_t q[kTileValues];
  if (!DecodeCodes(entry, words, q)) return false;
  const __m512 step = _mm512_set1_ps(quant.step);
  for (int t = 0; t < kPixels; ++t, out += row_bytes) {
    T* row = reinterpret_cast<T*>(out);
    for (int l = 0; l < kLanes; l += 16) {
      const __m256i codes = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(q + t * kLanes + l));
      Store16(
          Dequantize16<kCoding>(
              _mm512_cvtepi16_epi32(codes), step,
              quant.counter + static_cast<uint32_t>(t * kLanes + l)),
          row + l, kAll16);
    }
  }
  return true;
}

template <class T, Coding kCoding>
bool DecodeTile(const Quantizer& quant, uint16_t entry, const uint32_t* words,
                void* out, int64_t row_bytes) {
  const uint32_t n_words = entry & kWordsMask;
  uint8_t* to = static_cast<uint8_t*>(out);
  if (n_words == 0) {
    FillZeros<T>(to, row_bytes);
    return true;
  }
  if (entry & kWide) {
    return DecodeWide<T, kCoding>(quant, entry, words, to, row_bytes);
  }
  LaneFormats formats;
  alignas(64) uint32_t maps[kLanes];
  if (!ReadFormats(words, n_words, &formats, maps)) return false;
  alignas(64) uint64_t values[kLanes * 4], masks[kLanes * 4];
  if ((formats.dense | formats.sparse) != ~0u) {
    std::memset(values, 0, sizeof values);
  }
  MakeMasks(formats, maps, masks);
  UnpackLanes(formats, words, masks, kTables.chunk, values);
  __m512i blocks[2][8];
  Transpose(values, blocks[0]);
  Transpose(values + 64, blocks[1]);
  EmitTile<T, kCoding>(quant, entry, AllSmall(formats), blocks, to,
                             row_bytes);
  return true;
}

void ApplyMask(const uint32_t rows[kPixels], int item, const uint8_t* dy,
               uint8_t* dx, int64_t row_bytes) {
  for (int t = 0; t < kPixels; ++t, dy += row_bytes, dx += row_bytes) {
    if (item == 2) {
      _mm512_storeu_si512(
          dx, _mm512_maskz_mov_epi16(rows[t], _mm512_loadu_si512(dy)));
      continue;
    }
    const __m512i a = _mm512_loadu_si512(dy);
    const __m512i b = _mm512_loadu_si512(dy + 64);
    _mm512_storeu_si512(
        dx, _mm512_maskz_mov_epi32(static_cast<__mmask16>(rows[t]), a));
    _mm512_storeu_si512(
        dx + 64,
        _mm512_maskz_mov_epi32(static_cast<__mmask16>(rows[t] >> 16), b));
  }
}

}  // namespace

// plane_encode_avx512.cc
EncodeTileFn Avx512Encoder(DType dtype, Coding coding);

TileKernels Avx512Kernels(DType dtype, Coding coding) {
  TileKernels k = {};
  k.encode = Avx512Encoder(dtype, coding);
  k.decode = SelectKernel(dtype, coding, [](auto v, auto c) -> DecodeTileFn {
    return DecodeTile<decltype(v), c()>;
  });
  k.mask = MaskTileBmi2;
  k.apply = ApplyMask;
  return k;
}

}  // namespace plane
}  // namespace comptrain

#else

namespace comptrain {
namespace plane {
TileKernels Avx512Kernels(DType, Coding) { return {}; }
}  // namespace plane
}  // namespace comptrain

#endif
