// plane's tile decoder and ReLU mask with AVX2 and BMI2.
#include "cc/codec/plane/tile.h"

#if defined(__AVX2__) && defined(__BMI2__) && defined(__F16C__) && \
    defined(__x86_64__)

#include "cc/codec/plane/lanes_bmi2.h"
#include "cc/codec/plane/mask_bmi2.h"
#include "cc/codec/stream/quantize_avx2.h"
#include "cc/codec/stream/select_kernel.h"

namespace comptrain {
namespace plane {
namespace {

// Where UnpackLanes puts 16 pixels of a lane: a vector then holds lanes i and
// 4 + i of a quarter tile, ready for 4 x 4 transposes.
struct Tables {
  uint8_t chunk[kLanes][2];
};

constexpr Tables MakeTables() {
  Tables t = {};
  for (int l = 0; l < kLanes; ++l) {
    for (int h = 0; h < 2; ++h) {
      t.chunk[l][h] = static_cast<uint8_t>((l / 8 * 2 + h) * 8 + l % 4 * 2 +
                                           l % 8 / 4);
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
  const __m256i byte_of = _mm256_setr_epi64x(
      0, kByteOnes, 2 * kByteOnes, 3 * kByteOnes);
  const __m256i bit_of =
      _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t map = f.dense >> l & 1 ? ~0u : maps[l];
    const __m256i bits = _mm256_and_si256(
        _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(map)), byte_of),
        bit_of);
    const __m256i set = _mm256_cmpeq_epi8(bits, bit_of);
    _mm256_store_si256(
        reinterpret_cast<__m256i*>(masks + 4 * l),
        _mm256_and_si256(
            set, _mm256_set1_epi8(static_cast<char>(width_masks[l]))));
  }
}

// 4 pixels of 8 lanes a vector: blocks[k] holds pixels 4 k .. 4 k + 3.
inline void Transpose(const uint64_t* values, __m256i blocks[8]) {
  for (int h = 0; h < 2; ++h) {
    const __m256i* in = reinterpret_cast<const __m256i*>(values) + 4 * h;
    const __m256i v0 = _mm256_load_si256(in), v1 = _mm256_load_si256(in + 1);
    const __m256i v2 = _mm256_load_si256(in + 2),
                  v3 = _mm256_load_si256(in + 3);
    const __m256i a = _mm256_unpacklo_epi32(v0, v1);
    const __m256i b = _mm256_unpackhi_epi32(v0, v1);
    const __m256i c = _mm256_unpacklo_epi32(v2, v3);
    const __m256i d = _mm256_unpackhi_epi32(v2, v3);
    blocks[4 * h] = _mm256_unpacklo_epi64(a, c);
    blocks[4 * h + 1] = _mm256_unpackhi_epi64(a, c);
    blocks[4 * h + 2] = _mm256_unpacklo_epi64(b, d);
    blocks[4 * h + 3] = _mm256_unpackhi_epi64(b, d);
  }
}

inline __m256i Unzigzag(__m256i u) {
  const __m256i odd = _mm256_and_si256(u, _mm256_set1_epi32(1));
  return _mm256_xor_si256(_mm256_srli_epi32(u, 1),
                          _mm256_sub_epi32(_mm256_setzero_si256(), odd));
}

// Calls value(codes, quarter, at) for the four quarters of each row, in order,
// `at` the place of the first value in the tile, and stores the results: whole
// rows at a time, which memory likes best.
template <class T, class Value>
inline void EmitRows(const __m256i blocks[4][8], uint8_t* to,
                     int64_t row_bytes, const Value& value) {
  const __m256i byte = _mm256_set1_epi32(255);
  for (int k = 0; k < 8; ++k) {
    __m256i v[4] = {blocks[0][k], blocks[1][k], blocks[2][k], blocks[3][k]};
    for (int i = 0; i < 4; ++i, to += row_bytes) {
      T* row = reinterpret_cast<T*>(to);
      for (int quarter = 0; quarter < 4; ++quarter) {
        const uint32_t at =
            static_cast<uint32_t>((4 * k + i) * kLanes + 8 * quarter);
        Store8(value(_mm256_and_si256(v[quarter], byte), quarter, at),
               row + 8 * quarter);
        v[quarter] = _mm256_srli_epi32(v[quarter], 8);
      }
    }
  }
}

template <class T, Coding kCoding>
inline void EmitTile(const Quantizer& quant, uint16_t entry,
                     const __m256i blocks[4][8], uint8_t* out,
                     int64_t row_bytes) {
  const __m256 step = _mm256_set1_ps(quant.step);
  if (entry & kDelta) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i q[4] = {zero, zero, zero, zero};
    EmitRows<T>(blocks, out, row_bytes, [&](__m256i u, int quarter, uint32_t at) {
      q[quarter] = _mm256_add_epi32(q[quarter], Unzigzag(u));
      return Dequantize8<kCoding>(q[quarter], step, quant.counter + at);
    });
  } else if (entry & kZigzag) {
    EmitRows<T>(blocks, out, row_bytes, [&](__m256i u, int, uint32_t at) {
      return Dequantize8<kCoding>(Unzigzag(u), step, quant.counter + at);
    });
  } else {
    EmitRows<T>(blocks, out, row_bytes, [&](__m256i u, int, uint32_t at) {
      return Dequantize8<kCoding, false>(u, step, quant.counter + at);
    });
  }
}

template <class T, Coding kCoding>
bool DecodeWide(const Quantizer& quant, uint16_t entry, const uint32_t* words,
                uint8_t* out, int64_t row_bytes) {
  int16_t q[kTileValues];
  if (!DecodeCodes(entry, words, q)) return false;
  const __m256 step = _mm256_set1_ps(quant.step);
  for (int t = 0; t < kPixels; ++t, out += row_bytes) {
    T* row = reinterpret_cast<T*>(out);
    for (int l = 0; l < kLanes; l += 8) {
      const __m128i codes = _mm_loadu_si128(
          reinterpret_cast<const __m128i*>(q + t * kLanes + l));
      Store8(Dequantize8<kCoding>(
                 _mm256_cvtepi16_epi32(codes), step,
                 quant.counter + static_cast<uint32_t>(t * kLanes + l)),
             row + l);
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
    for (int t = 0; t < kPixels; ++t, to += row_bytes) {
      std::memset(to, 0, kLanes * sizeof(T));
    }
    return true;
  }
  if (entry & kWide) {
    return DecodeWide<T, kCoding>(quant, entry, words, to, row_bytes);
  }
  LaneFormats formats;
  alignas(32) uint32_t maps[kLanes];
  if (!ReadFormats(words, n_words, &formats, maps)) return false;
  alignas(32) uint64_t values[kLanes * 4], masks[kLanes * 4];
  if ((formats.dense | formats.sparse) != ~0u) {
    std::memset(values, 0, sizeof values);
  }
  MakeMasks(formats, maps, masks);
  UnpackLanes(formats, words, masks, kTables.chunk, values);
  __m256i blocks[4][8];
  for (int quarter = 0; quarter < 4; ++quarter) {
    Transpose(values + 32 * quarter, blocks[quarter]);
  }
  EmitTile<T, kCoding>(quant, entry, blocks, to, row_bytes);
  return true;
}

// 32-bit (or 16-bit) lanes of ones where the bits of a row are set.
inline __m256i SpreadBits32(uint32_t bits) {
  const __m256i of_lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(
      _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), of_lane),
      of_lane);
}

inline __m256i SpreadBits16(uint32_t bits) {
  const __m256i of_lane =
      _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048,
                        4096, 8192, 16384, INT16_MIN);
  return _mm256_cmpeq_epi16(
      _mm256_and_si256(_mm256_set1_epi16(static_cast<int16_t>(bits)), of_lane),
      of_lane);
}

void ApplyMask(const uint32_t rows[kPixels], int item, const uint8_t* dy,
               uint8_t* dx, int64_t row_bytes) {
  const int per_vector = 32 / item;
  for (int t = 0; t < kPixels; ++t, dy += row_bytes, dx += row_bytes) {
    for (int i = 0; i < item; ++i) {
      const uint32_t bits = rows[t] >> (i * per_vector);
      const __m256i keep = item == 2 ? SpreadBits16(bits) : SpreadBits32(bits);
      const __m256i v = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(dy + 32 * i));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dx + 32 * i),
                          _mm256_and_si256(v, keep));
    }
  }
}

}  // namespace

// plane_encode_avx2.cc
EncodeTileFn Avx2Encoder(DType dtype, Coding coding);

TileKernels Avx2Kernels(DType dtype, Coding coding) {
  TileKernels k = {};
  k.encode = Avx2Encoder(dtype, coding);
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
TileKernels Avx2Kernels(DType, Coding) { return {}; }
}  // namespace plane
}  // namespace comptrain

#endif
