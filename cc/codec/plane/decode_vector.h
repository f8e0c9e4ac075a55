// plane's tile decoder and ReLU mask over vectors, for decode_avx2.cc and
// decode_avx512.cc.
#pragma once

#include "cc/codec/common/vector.h"
#include "cc/codec/plane/tile.h"

#include "cc/codec/plane/lanes_bmi2.h"
#include "cc/codec/plane/mask_bmi2.h"
#include "cc/codec/stream/quantize_vector.h"
#include "cc/codec/stream/select_kernel.h"

#define V COMPTRAIN_V

namespace comptrain::plane {
namespace {

constexpr int kParts = kLanes / kWidth;  // vectors a row

// Where UnpackLanes puts 16 pixels of a lane: a vector then holds lanes i, 4 +
// i,
// ... of kWidth lanes, ready for 4 x 4 transposes.
struct Tables {
  uint8_t chunk[kLanes][2];
};

constexpr Tables MakeTables() {
  Tables t = {};
  for (int l = 0; l < kLanes; ++l) {
    for (int h = 0; h < 2; ++h) {
      t.chunk[l][h] =
          static_cast<uint8_t>((l / kWidth * 2 + h) * kWidth +
                               l % 4 * (kWidth / 4) + l % kWidth / 4);
    }
  }
  return t;
}

constexpr Tables kTables = MakeTables();

// `value` where the bits are set.
inline __m256i SetBytes(uint32_t bits, uint8_t value) {
#if COMPTRAIN_IS_AVX512
  return _mm256_maskz_set1_epi8(bits, static_cast<char>(value));
#else
  const __m256i byte_of =
      _mm256_setr_epi64x(0, kByteOnes, 2 * kByteOnes, 3 * kByteOnes);
  const __m256i bit_of =
      _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i of_byte =
      _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), byte_of);
  return _mm256_cmpeq_epi8(of_byte & bit_of, bit_of) &
         _mm256_set1_epi8(static_cast<char>(value));
#endif
}

// Which bits of every code of lane l are stored: four u64 at 4 l.
inline void MakeMasks(const LaneFormats& f, const uint32_t* maps,
                      uint64_t* masks) {
  alignas(32) uint8_t width_masks[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(width_masks),
                     WidthMask(f.width));
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t map = f.dense >> l & 1 ? ~0u : maps[l];
    _mm256_store_si256(reinterpret_cast<__m256i*>(masks + 4 * l),
                       SetBytes(map, width_masks[l]));
  }
}

// 4 pixels of kWidth lanes a vector: blocks[k] holds pixels 4 k .. 4 k + 3.
inline void Transpose(const uint64_t* values, Ints blocks[8]) {
  for (int h = 0; h < 2; ++h) {
    Ints v[4];
    for (int i = 0; i < 4; ++i) {
      v[i] = LoadInts(values + (4 * h + i) * (kWidth / 2));
    }
    const Ints a = V(unpacklo_epi32)(v[0], v[1]);
    const Ints b = V(unpackhi_epi32)(v[0], v[1]);
    const Ints c = V(unpacklo_epi32)(v[2], v[3]);
    const Ints d = V(unpackhi_epi32)(v[2], v[3]);
    blocks[4 * h] = V(unpacklo_epi64)(a, c);
    blocks[4 * h + 1] = V(unpackhi_epi64)(a, c);
    blocks[4 * h + 2] = V(unpacklo_epi64)(b, d);
    blocks[4 * h + 3] = V(unpackhi_epi64)(b, d);
  }
}

// Four bytes an element -> four vectors with one of them each.
inline void SplitUnsigned(Ints v, Ints rows[4]) {
  const Ints byte = AllInts(255);
  rows[0] = v & byte;
  rows[1] = V(srli_epi32)(v, 8) & byte;
  rows[2] = V(srli_epi32)(v, 16) & byte;
  rows[3] = V(srli_epi32)(v, 24);
}
inline void SplitZigzag(Ints u, Ints rows[4]) {
  const Ints sign = V(sub_epi8)(Ints{}, u & All8(1));
  const Ints v = (V(srli_epi16)(u, 1) & All8(127)) ^ sign;
  rows[0] = V(srai_epi32)(V(slli_epi32)(v, 24), 24);
  rows[1] = V(srai_epi32)(V(slli_epi32)(v, 16), 24);
  rows[2] = V(srai_epi32)(V(slli_epi32)(v, 8), 24);
  rows[3] = V(srai_epi32)(v, 24);
}

// Calls value(codes, part, scales, numbers) for the parts of each row, in
// order, with what split makes of the codes, and stores the results: whole rows
// at a time, which memory likes best.
template <class T, class Split, class Value>
inline void EmitRows(const Ints blocks[kParts][8], const Quantizer& quant,
                     uint8_t* to, int64_t row_bytes, const Split& split,
                     const Value& value) {
  RowScales scales(quant);
  Ints numbers = Numbers(quant.counter);
  for (int k = 0; k < 8; ++k) {
    Ints rows[kParts][4];
    for (int part = 0; part < kParts; ++part) {
      split(blocks[part][k], rows[part]);
    }
    for (int i = 0; i < 4; ++i, to += row_bytes, scales.NextRow()) {
      T* row = reinterpret_cast<T*>(to);
      for (int part = 0; part < kParts; ++part) {
        Store(value(rows[part][i], part, scales, numbers), row + kWidth * part);
        numbers = NumbersAfter(numbers, kWidth);
      }
    }
  }
}

#if COMPTRAIN_IS_AVX512
// Where all codes are below 32, values in steps, or with dither their levels,
// come from a table of two vectors.
template <class T, Coding kCoding>
inline bool EmitSmall(const Quantizer& quant, uint16_t entry,
                      const LaneFormats& f, const Ints blocks[kParts][8],
                      uint8_t* out, int64_t row_bytes) {
  const __m256i most = _mm256_add_epi8(_mm256_set1_epi8(5), f.is_sparse);
  if ((entry & kDelta) ||
      _mm256_movemask_epi8(_mm256_cmpgt_epi8(f.width, most)) != 0) {
    return false;
  }
  Floats table[2];
  for (uint32_t i = 0; i < 2; ++i) {
    const Ints u = V(add_epi32)(Iota(), AllInts(16 * i));
    Ints q[4] = {u};
    if (entry & kZigzag) SplitZigzag(u, q);
    table[i] =
        kCoding == Coding::kDither
            ? V(cvtepi32_ps)(LevelOf(q[0]))
            : DequantizeVector<kCoding>(q[0], AllFloats(1), Ints{}, Ints{});
  }
  const auto split = [](Ints v, Ints rows[4]) {
    rows[0] = v;
    rows[1] = V(srli_epi32)(v, 8);
    rows[2] = V(srli_epi32)(v, 16);
    rows[3] = V(srli_epi32)(v, 24);
  };
  EmitRows<T>(
      blocks, quant, out, row_bytes, split,
      [&](Ints v, int part, const RowScales& scales, Ints numbers) {
        const int lane = kWidth * part;
        const Floats found = _mm512_permutex2var_ps(table[0], v, table[1]);
        const Floats step = scales.Step(lane);
        if (kCoding != Coding::kDither) return found * step;
        return Undithered(found + V(cvtepi32_ps)(scales.Centre(lane)), step,
                          numbers, _mm512_test_epi32_mask(v, AllInts(31)));
      });
  return true;
}
#else
template <class T, Coding kCoding>
inline bool EmitSmall(const Quantizer&, uint16_t, const LaneFormats&,
                      const Ints[kParts][8], uint8_t*, int64_t) {
  return false;
}
#endif

template <class T, Coding kCoding>
inline void EmitTile(const Quantizer& quant, uint16_t entry,
                     const Ints blocks[kParts][8], uint8_t* out,
                     int64_t row_bytes) {
  if (entry & kDelta) {
    Ints q[kParts] = {};
    EmitRows<T>(blocks, quant, out, row_bytes, SplitZigzag,
                [&](Ints d, int part, const RowScales& of, Ints numbers) {
                  q[part] = V(add_epi32)(q[part], d);
                  return DequantizeVector<kCoding>(
                      q[part], of.Step(kWidth * part), of.Centre(kWidth * part),
                      numbers);
                });
  } else if (entry & kZigzag) {
    EmitRows<T>(blocks, quant, out, row_bytes, SplitZigzag,
                [&](Ints q, int part, const RowScales& of, Ints numbers) {
                  return DequantizeVector<kCoding>(q, of.Step(kWidth * part),
                                                   of.Centre(kWidth * part),
                                                   numbers);
                });
  } else {
    EmitRows<T>(blocks, quant, out, row_bytes, SplitUnsigned,
                [&](Ints q, int part, const RowScales& of, Ints numbers) {
                  return DequantizeVector<kCoding, false>(
                      q, of.Step(kWidth * part), of.Centre(kWidth * part),
                      numbers);
                });
  }
}

template <class T, Coding kCoding>
bool DecodeWide(const Quantizer& quant, uint16_t entry, const uint32_t* words,
                uint8_t* out, int64_t row_bytes) {
  int16_t q[kTileValues];
  if (!DecodeCodes(entry, words, q)) return false;
  RowScales scales(quant);
  Ints numbers = Numbers(quant.counter);
  for (int t = 0; t < kPixels; ++t, out += row_bytes, scales.NextRow()) {
    for (int l = 0; l < kLanes; l += kWidth) {
      Store(DequantizeVector<kCoding>(
                V(cvtepi16_epi32)(LoadHalf(q + t * kLanes + l)), scales.Step(l),
                scales.Centre(l), numbers),
            reinterpret_cast<T*>(out) + l);
      numbers = NumbersAfter(numbers, kWidth);
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
  alignas(64) uint32_t maps[kLanes];
  if (!ReadFormats(words, n_words, &formats, maps)) return false;
  alignas(64) uint64_t values[kLanes * 4], masks[kLanes * 4];
  if ((formats.dense | formats.sparse) != ~0u) {
    std::memset(values, 0, sizeof values);
  }
  MakeMasks(formats, maps, masks);
  UnpackLanes(formats, words, masks, kTables.chunk, values);
  Ints blocks[kParts][8];
  for (int part = 0; part < kParts; ++part) {
    Transpose(values + 4 * kWidth * part, blocks[part]);
  }
  if (!EmitSmall<T, kCoding>(quant, entry, formats, blocks, to, row_bytes)) {
    EmitTile<T, kCoding>(quant, entry, blocks, to, row_bytes);
  }
  return true;
}

void ApplyMask(const uint32_t rows[kPixels], int item, const uint8_t* dy,
               uint8_t* dx, int64_t row_bytes) {
  const int bytes = 4 * kWidth, per_vector = bytes / item;
  for (int t = 0; t < kPixels; ++t, dy += row_bytes, dx += row_bytes) {
    for (int i = 0; i * per_vector < kLanes; ++i) {
      const uint32_t bits = rows[t] >> (i * per_vector);
      const Ints v = LoadInts(dy + bytes * i);
      StoreInts(item == 2 ? KeepBits16(v, bits) : Keep(v, MaskOf(bits)),
                dx + bytes * i);
    }
  }
}

}  // namespace

TileKernels COMPTRAIN_NAME(Kernels)(DType dtype, Coding coding) {
  TileKernels k = {};
  k.encode = COMPTRAIN_NAME(Encoder)(dtype, coding);
  k.decode = SelectKernel(dtype, coding, [](auto v, auto c) -> DecodeTileFn {
    return DecodeTile<decltype(v), c()>;
  });
  k.mask = MaskTileBmi2;
  k.apply = ApplyMask;
  return k;
}

}  // namespace comptrain::plane

#undef V
