// Wide tiles with AVX2 and BMI2, shared by the AVX2 and AVX-512 encoders: what
// plane_pack.cc defines, four pixels at a time. Codes are [pixel][lane] in
// natural order. Static, as all code in headers for wider sets.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "cc/codec/plane/lane.h"
#include "cc/codec/plane/tile.h"

namespace comptrain::plane {

struct WideFormats {
  uint32_t words;          // of the payload
  uint32_t dense, sparse;  // bit l: of lane l, which is not all zero
  uint8_t code[kLanes];    // as in the header
};

// largest, nonzero: of each lane's codes.
static inline WideFormats ChooseWideFormats(const uint16_t largest[kLanes],
                                            const uint16_t nonzero[kLanes]) {
  WideFormats f = {};
  uint32_t dense_words = 0, sparse_bits = 0;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t u = largest[l];
    const uint32_t width = static_cast<uint32_t>(BitLength(u));
    const uint32_t sparse_width =
        static_cast<uint32_t>(BitLength(u - (u != 0)));
    const uint32_t bits = sparse_width * nonzero[l];
    const bool is_sparse = kPixels + bits < width * kPixels;
    f.code[l] =
        static_cast<uint8_t>(is_sparse ? sparse_width + kWideSparse : width);
    f.sparse |= static_cast<uint32_t>(is_sparse) << l;
    f.dense |= static_cast<uint32_t>(!is_sparse && u != 0) << l;
    sparse_bits += is_sparse ? bits : 0;
    dense_words += is_sparse ? 0 : width;
  }
  if ((f.dense | f.sparse) != 0) {
    f.words = kWideHeaderWords + dense_words + (sparse_bits + 31) / 32 +
              static_cast<uint32_t>(_mm_popcnt_u32(f.sparse));
  }
  return f;
}

// 8 pixels of 8 lanes -> 8 lanes of 8 pixels.
static inline void TransposeWideBlock(const uint16_t* codes, uint16_t* lanes) {
  __m128i a[8], b[8];
  for (int t = 0; t < 8; ++t) {
    a[t] =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + t * kLanes));
  }
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = _mm_unpacklo_epi16(a[i], a[i + 4]);
    b[2 * i + 1] = _mm_unpackhi_epi16(a[i], a[i + 4]);
  }
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm_unpacklo_epi16(b[i], b[i + 4]);
    a[2 * i + 1] = _mm_unpackhi_epi16(b[i], b[i + 4]);
  }
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = _mm_unpacklo_epi16(a[i], a[i + 4]);
    b[2 * i + 1] = _mm_unpackhi_epi16(a[i], a[i + 4]);
  }
  for (int l = 0; l < 8; ++l) {
    _mm_store_si128(reinterpret_cast<__m128i*>(lanes + l * kPixels), b[l]);
  }
}

// Bits, lowest first, from a byte on.
class WideBitWriter {
 public:
  explicit WideBitWriter(uint32_t* out)
      : at_(reinterpret_cast<uint8_t*>(out)) {}

  // The bits of value under mask: with those of fewer than 8 that wait, at
  // most 64.
  void Put(uint64_t value, uint64_t mask) {
    buffer_ |= _pext_u64(value, mask) << filled_;
    std::memcpy(at_, &buffer_, sizeof buffer_);
    filled_ += static_cast<uint64_t>(_mm_popcnt_u64(mask));
    at_ += filled_ >> 3;
    buffer_ = filled_ < 64 ? buffer_ >> (filled_ & 0x38) : 0;
    filled_ &= 7;
  }
  void Finish() const { std::memcpy(at_, &buffer_, sizeof buffer_); }

 private:
  uint8_t* at_;
  uint64_t buffer_ = 0, filled_ = 0;
};

// Writes as PackCodes; f: of these codes.
static inline void PackWideTile(const WideFormats& f,
                                const uint16_t codes[kTileValues],
                                uint32_t* out) {
  constexpr uint64_t kOnes = 0x0001000100010001;
  alignas(64) uint16_t lanes[kTileValues];
  for (int t = 0; t < kPixels; t += 8) {
    for (int l = 0; l < kLanes; l += 8) {
      TransposeWideBlock(codes + t * kLanes + l, lanes + l * kPixels + t);
    }
  }
  std::memcpy(out, f.code, sizeof f.code);
  out += kWideHeaderWords;

  const __m256i zero = _mm256_setzero_si256();
  alignas(32) uint16_t set[kLanes];  // 0xffff where a code is not zero
  for (uint32_t left = f.sparse; left != 0; left &= left - 1) {
    const __m256i* lane =
        reinterpret_cast<const __m256i*>(lanes + kPixels * _tzcnt_u32(left));
    const __m256i empty = _mm256_permute4x64_epi64(
        _mm256_packs_epi16(_mm256_cmpeq_epi16(lane[0], zero),
                           _mm256_cmpeq_epi16(lane[1], zero)),
        0xd8);
    *out++ = ~static_cast<uint32_t>(_mm256_movemask_epi8(empty));
  }

  WideBitWriter bits(out);
  const auto four = [](const uint16_t* pixels) {
    uint64_t value;
    std::memcpy(&value, pixels, sizeof value);
    return value;
  };
  for (uint32_t left = f.dense; left != 0; left &= left - 1) {
    const unsigned l = _tzcnt_u32(left);
    const uint64_t mask = kOnes * ((1u << f.code[l]) - 1);
    for (int t = 0; t < kPixels; t += 4) {
      bits.Put(four(lanes + kPixels * l + t), mask);
    }
  }
  for (uint32_t left = f.sparse; left != 0; left &= left - 1) {
    const unsigned l = _tzcnt_u32(left);
    const __m256i width_mask = _mm256_set1_epi16(
        static_cast<int16_t>((1u << (f.code[l] - kWideSparse)) - 1));
    __m256i* lane = reinterpret_cast<__m256i*>(lanes + kPixels * l);
    for (int h = 0; h < 2; ++h) {
      const __m256i empty = _mm256_cmpeq_epi16(lane[h], zero);
      _mm256_store_si256(reinterpret_cast<__m256i*>(set) + h,
                         _mm256_andnot_si256(empty, width_mask));
      lane[h] = _mm256_sub_epi16(lane[h], _mm256_set1_epi16(1));
    }
    for (int t = 0; t < kPixels; t += 2) {
      uint32_t value, mask;
      std::memcpy(&value, lanes + kPixels * l + t, sizeof value);
      std::memcpy(&mask, set + t, sizeof mask);
      bits.Put(value, mask);
    }
  }
  bits.Finish();
}

}  // namespace comptrain::plane
