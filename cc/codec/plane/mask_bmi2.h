// Which codes of a tile are not zero, with AVX2 and BMI2, without decoding
// values: bit maps of sparse lanes, the OR of a dense lane's bits.
#pragma once

#include "cc/codec/plane/lanes_bmi2.h"

namespace comptrain::plane {

// Bit t: pixel t of a dense lane of `width` bits is not zero.
static inline uint32_t DenseMap(const uint8_t* at, int width) {
  const uint64_t mask = kByteOnes * ((1u << width) - 1);
  uint32_t map = 0;
  for (int i = 0; i < 4; ++i) {
    const __m128i codes = _mm_cvtsi64_si128(
        static_cast<int64_t>(_pdep_u64(Load64(at + i * width), mask)));
    const int zeros =
        _mm_movemask_epi8(_mm_cmpeq_epi8(codes, _mm_setzero_si128()));
    map |= static_cast<uint32_t>(~zeros & 255) << (8 * i);
  }
  return map;
}

// rows[t] bit l = maps[l] bit t.
static inline void TransposeBits(const uint32_t maps[kLanes],
                                 uint32_t rows[kPixels]) {
  const __m256i gather = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m256i v[4];  // byte b of 8 lanes, b = 0..3, a u64 each
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permutevar8x32_epi32(
        _mm256_shuffle_epi8(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(maps + 8 * i)),
            gather),
        order);
  }
  const __m256i a = _mm256_unpacklo_epi64(v[0], v[1]);
  const __m256i b = _mm256_unpackhi_epi64(v[0], v[1]);
  const __m256i c = _mm256_unpacklo_epi64(v[2], v[3]);
  const __m256i d = _mm256_unpackhi_epi64(v[2], v[3]);
  const __m256i bytes[4] = {_mm256_permute2x128_si256(a, c, 0x20),
                            _mm256_permute2x128_si256(b, d, 0x20),
                            _mm256_permute2x128_si256(a, c, 0x31),
                            _mm256_permute2x128_si256(b, d, 0x31)};
  for (int i = 0; i < 4; ++i) {
    __m256i bits = bytes[i];
    for (int t = 7; t >= 0; --t) {
      rows[8 * i + t] = static_cast<uint32_t>(_mm256_movemask_epi8(bits));
      bits = _mm256_add_epi8(bits, bits);
    }
  }
}

// A MaskTileFn.
static bool MaskTileBmi2(uint16_t entry, const uint32_t* words,
                         uint32_t rows[kPixels]) {
  const uint32_t n_words = entry & kWordsMask;
  if (n_words == 0) {
    std::memset(rows, 0, kPixels * sizeof *rows);
    return true;
  }
  if (entry & (kWide | kDelta)) {
    return KernelsScalar(DType::kF32, Coding::kMidRise)
        .mask(entry, words, rows);
  }
  LaneFormats formats;
  alignas(32) uint32_t maps[kLanes];
  if (!ReadFormats(words, n_words, &formats, maps)) return false;
  alignas(32) uint8_t widths[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(widths), formats.width);
  const uint8_t* at = reinterpret_cast<const uint8_t*>(
      words + kNarrowHeaderWords + MapWords(formats.sparse));
  for (uint32_t lanes = formats.dense; lanes != 0; lanes &= lanes - 1) {
    const unsigned l = _tzcnt_u32(lanes);
    maps[l] = DenseMap(at, widths[l]);
    at += 4 * widths[l];
  }
  TransposeBits(maps, rows);
  return true;
}

}  // namespace comptrain::plane
