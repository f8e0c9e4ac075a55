// Narrow tiles with AVX2 and BMI2, shared by the AVX2 and AVX-512 kernels:
// formats of the 32 lanes, and the bits of their values. Lanes are in natural
// order in every vector here. Static, as all code in headers for wider sets.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "cc/codec/plane/lane.h"
#include "cc/codec/plane/tile.h"

namespace comptrain::plane {

constexpr uint64_t kByteOnes = 0x0101010101010101;

struct LaneFormats {
  uint32_t words;     // of the payload
  uint32_t dense;     // bit l: lane l is dense and not all zero
  uint32_t sparse;    // bit l: lane l is sparse
  __m256i width;      // a byte a lane
  __m256i is_sparse;  // 0xff a sparse lane
};

static inline uint64_t Load64(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

static inline void Store64(uint8_t* p, uint64_t v) {
  std::memcpy(p, &v, sizeof v);
}

// Rows of a tile lie far apart: without this their lines come one by one.
template <class T>
static inline void PrefetchRow(const uint8_t* row) {
  _mm_prefetch(reinterpret_cast<const char*>(row), _MM_HINT_T0);
  if (sizeof(T) == 4) {
    _mm_prefetch(reinterpret_cast<const char*>(row) + 64, _MM_HINT_T0);
  }
}

static inline __m256i Repeat16(int64_t low, int64_t high) {
  return _mm256_broadcastsi128_si256(_mm_set_epi64x(high, low));
}

static inline __m256i BitLength8(__m256i v) {
  const __m256i low_nibble = _mm256_set1_epi8(15);
  const __m256i of_low = Repeat16(0x0303030302020100, 0x0404040404040404);
  const __m256i of_high = Repeat16(0x0707070706060500, 0x0808080808080808);
  const __m256i low = _mm256_and_si256(v, low_nibble);
  const __m256i high = _mm256_and_si256(_mm256_srli_epi16(v, 4), low_nibble);
  return _mm256_max_epu8(_mm256_shuffle_epi8(of_low, low),
                         _mm256_shuffle_epi8(of_high, high));
}

// Bytes with the low `width` bits set.
static inline __m256i WidthMask(__m256i width) {
  const __m256i table = Repeat16(0x7f3f1f0f07030100, 0x00000000000000ff);
  return _mm256_shuffle_epi8(table, width);
}

static inline __m256i MultiplyBytes(__m256i a, __m256i b) {
  const __m256i low = _mm256_set1_epi16(255);
  const __m256i even =
      _mm256_mullo_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
  const __m256i odd =
      _mm256_mullo_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
  return _mm256_or_si256(_mm256_and_si256(even, low),
                         _mm256_slli_epi16(odd, 8));
}

// Sums of the bytes of a, and of b.
static inline void SumBytes(__m256i a, __m256i b, uint32_t* sum_a,
                            uint32_t* sum_b) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i both =
      _mm256_add_epi64(_mm256_sad_epu8(a, zero),
                       _mm256_slli_epi64(_mm256_sad_epu8(b, zero), 32));
  const __m128i half = _mm_add_epi64(_mm256_castsi256_si128(both),
                                     _mm256_extracti128_si256(both, 1));
  const uint64_t sums = static_cast<uint64_t>(
      _mm_cvtsi128_si64(_mm_add_epi64(half, _mm_srli_si128(half, 8))));
  *sum_a = static_cast<uint32_t>(sums);
  *sum_b = static_cast<uint32_t>(sums >> 32);
}

// A word a sparse lane.
static inline uint32_t MapWords(uint32_t sparse) {
  return static_cast<uint32_t>(_mm_popcnt_u32(sparse));
}

static inline void CountLanes(__m256i value_bits, LaneFormats* f) {
  uint32_t dense_words, sparse_bits;
  SumBytes(_mm256_andnot_si256(f->is_sparse, f->width),
           _mm256_and_si256(f->is_sparse, value_bits), &dense_words,
           &sparse_bits);
  f->sparse = static_cast<uint32_t>(_mm256_movemask_epi8(f->is_sparse));
  const __m256i empty = _mm256_cmpeq_epi8(f->width, _mm256_setzero_si256());
  f->dense = ~static_cast<uint32_t>(_mm256_movemask_epi8(empty)) & ~f->sparse;
  f->words = (f->dense | f->sparse) == 0
                 ? 0
                 : kNarrowHeaderWords + MapWords(f->sparse) + dense_words +
                       (sparse_bits + 31) / 32;
}

// largest, nonzero: of each lane's codes; bytes. Sparse where that takes fewer
// bits: 32 + nonzero * sparse_width < 32 * width, and at most 7 a value.
static inline LaneFormats ChooseFormats(__m256i largest, __m256i nonzero) {
  const __m256i one = _mm256_set1_epi8(1);
  const __m256i width = BitLength8(largest);
  const __m256i sparse_width = BitLength8(_mm256_subs_epu8(largest, one));
  const __m256i bits = MultiplyBytes(nonzero, sparse_width);
  const __m256i limit = _mm256_slli_epi16(_mm256_subs_epu8(width, one), 5);
  const __m256i not_fewer =
      _mm256_cmpeq_epi8(_mm256_subs_epu8(limit, bits), _mm256_setzero_si256());
  const __m256i fits = _mm256_cmpgt_epi8(_mm256_set1_epi8(8), sparse_width);
  LaneFormats f;
  f.is_sparse = _mm256_andnot_si256(not_fewer, fits);
  f.width = _mm256_blendv_epi8(width, sparse_width, f.is_sparse);
  CountLanes(bits, &f);
  return f;
}

// values: the codes of 8 pixels a u64 (less one in sparse lanes), masks: the
// bits of them to store; of lane l, pixels 16 h ..: at 2 * (chunk[l] + 32 h).
// maps: 16 pixels a u16, at chunk[l] + 32 h.
static inline void PackLanes(const LaneFormats& f, const uint64_t* values,
                             const uint64_t* masks, const uint16_t* maps,
                             const uint8_t chunk[kLanes], uint32_t* out) {
  const __m256i codes = _mm256_add_epi8(
      f.width, _mm256_and_si256(f.is_sparse, _mm256_set1_epi8(8)));
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(out),
      _mm_or_si128(_mm256_castsi256_si128(codes),
                   _mm_slli_epi16(_mm256_extracti128_si256(codes, 1), 4)));
  out += kNarrowHeaderWords;
  for (uint32_t lanes = f.sparse; lanes != 0; lanes &= lanes - 1) {
    const int c = chunk[_tzcnt_u32(lanes)];
    *out++ = maps[c] | static_cast<uint32_t>(maps[c + 32]) << 16;
  }
  uint8_t* at = reinterpret_cast<uint8_t*>(out);
  for (uint32_t lanes = f.dense; lanes != 0; lanes &= lanes - 1) {
    const int c = 2 * chunk[_tzcnt_u32(lanes)];
    const uint64_t mask = masks[c];
    const int width = static_cast<int>(_mm_popcnt_u64(mask) / 8);
    Store64(at, _pext_u64(values[c], mask));
    Store64(at + width, _pext_u64(values[c + 1], mask));
    Store64(at + 2 * width, _pext_u64(values[c + 64], mask));
    Store64(at + 3 * width, _pext_u64(values[c + 65], mask));
    at += 4 * width;
  }
  uint64_t buffer = 0, filled = 0;  // fewer than 8 bits between calls
  const auto put = [&](uint64_t value, uint64_t mask) {
    buffer |= _pext_u64(value, mask) << filled;
    Store64(at, buffer);
    filled += static_cast<uint64_t>(_mm_popcnt_u64(mask));
    at += filled >> 3;
    buffer >>= filled & 0x38;
    filled &= 7;
  };
  for (uint32_t lanes = f.sparse; lanes != 0; lanes &= lanes - 1) {
    const int c = 2 * chunk[_tzcnt_u32(lanes)];
    put(values[c], masks[c]);
    put(values[c + 1], masks[c + 1]);
    put(values[c + 64], masks[c + 64]);
    put(values[c + 65], masks[c + 65]);
  }
  Store64(at, buffer);
}

static inline __m256i PopcountBytes(__m256i v) {
  const __m256i low_nibble = _mm256_set1_epi8(15);
  const __m256i table = Repeat16(0x0302020102010100, 0x0403030203020201);
  const __m256i low = _mm256_and_si256(v, low_nibble);
  const __m256i high = _mm256_and_si256(_mm256_srli_epi16(v, 4), low_nibble);
  return _mm256_add_epi8(_mm256_shuffle_epi8(table, low),
                         _mm256_shuffle_epi8(table, high));
}

// Reads header and bit maps; maps[l] is 0 for a lane that is not sparse. False
// when they do not make n_words words.
static inline bool ReadFormats(const uint32_t* words, uint32_t n_words,
                               LaneFormats* f, uint32_t maps[kLanes]) {
  const __m128i nibble = _mm_set1_epi8(15);
  const __m128i header =
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
  const __m256i codes =
      _mm256_set_m128i(_mm_and_si128(_mm_srli_epi16(header, 4), nibble),
                       _mm_and_si128(header, nibble));
  const __m256i eight = _mm256_set1_epi8(8);
  f->is_sparse = _mm256_cmpgt_epi8(codes, eight);
  f->width = _mm256_sub_epi8(codes, _mm256_and_si256(f->is_sparse, eight));
  const uint32_t sparse =
      static_cast<uint32_t>(_mm256_movemask_epi8(f->is_sparse));
  if (n_words < kNarrowHeaderWords + MapWords(sparse)) return false;
  std::memset(maps, 0, kLanes * sizeof *maps);
  const uint32_t* at = words + kNarrowHeaderWords;
  for (uint32_t lanes = sparse; lanes != 0; lanes &= lanes - 1) {
    maps[_tzcnt_u32(lanes)] = *at++;
  }
  // Bits set in each map, a byte a lane.
  const auto counts = [maps](int lane) {
    const __m256i bytes = PopcountBytes(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(maps + lane)));
    return _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1)),
                             _mm256_set1_epi16(1));
  };
  const __m256i packed =
      _mm256_packus_epi16(_mm256_packus_epi32(counts(0), counts(8)),
                          _mm256_packus_epi32(counts(16), counts(24)));
  const __m256i set = _mm256_permutevar8x32_epi32(
      packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  CountLanes(MultiplyBytes(set, f->width), f);
  return f->words == n_words;
}

// The codes of 8 pixels a u64: lane l, pixels 16 h ..: at 2 * chunk[l][h].
// masks: lane l's four, at 4 l. Lanes of zeros are not written.
static inline void UnpackLanes(const LaneFormats& f, const uint32_t* words,
                               const uint64_t* masks,
                               const uint8_t chunk[kLanes][2],
                               uint64_t* values) {
  const uint8_t* at = reinterpret_cast<const uint8_t*>(
      words + kNarrowHeaderWords + MapWords(f.sparse));
  for (uint32_t lanes = f.dense; lanes != 0; lanes &= lanes - 1) {
    const unsigned l = _tzcnt_u32(lanes);
    const uint64_t mask = masks[4 * l];
    const int width = static_cast<int>(_mm_popcnt_u64(mask) / 8);
    uint64_t* low = values + 2 * chunk[l][0];
    uint64_t* high = values + 2 * chunk[l][1];
    low[0] = _pdep_u64(Load64(at), mask);
    low[1] = _pdep_u64(Load64(at + width), mask);
    high[0] = _pdep_u64(Load64(at + 2 * width), mask);
    high[1] = _pdep_u64(Load64(at + 3 * width), mask);
    at += 4 * width;
  }
  uint64_t bit = 0;
  const auto get = [&](uint64_t mask) {
    const uint64_t bits = Load64(at + (bit >> 3)) >> (bit & 7);
    bit += static_cast<uint64_t>(_mm_popcnt_u64(mask));
    return _pdep_u64(bits, mask) + (mask & kByteOnes);
  };
  for (uint32_t lanes = f.sparse; lanes != 0; lanes &= lanes - 1) {
    const unsigned l = _tzcnt_u32(lanes);
    uint64_t* low = values + 2 * chunk[l][0];
    uint64_t* high = values + 2 * chunk[l][1];
    low[0] = get(masks[4 * l]);
    low[1] = get(masks[4 * l + 1]);
    high[0] = get(masks[4 * l + 2]);
    high[1] = get(masks[4 * l + 3]);
  }
}

}  // namespace comptrain::plane
