// zvc's loops over vectors, for avx2.cc and avx512.cc.
#pragma once

#include "cc/codec/common/vector.h"
#include "cc/codec/zvc/kernels.h"

namespace comptrain::zvc {
namespace {

// Elements<T>, T the bits of an element: a Vector of kCount of them, Load and
// Store; Bits, for 32 elements, which have any bit set; Pack, those of `set` to
// the front; Unpack, back to where they were, zeros between them.
template <class T>
struct Elements;

#if COMPTRAIN_IS_AVX512
// Compress and expand within registers: their forms that go to memory are many
// times slower on some processors.
struct InRegisters {
  using Vector = Ints;
  static Vector Load(const char* p) { return LoadInts(p); }
  static void Store(Vector v, char* p) { StoreInts(v, p); }
};

template <>
struct Elements<uint32_t> : InRegisters {
  static constexpr int kCount = 16;
  static uint32_t Bits(const Vector v[2]) {
    return BitsOf(NotZero(v[0])) | BitsOf(NotZero(v[1])) << 16;
  }
  static Vector Pack(Vector v, uint32_t set) {
    return _mm512_maskz_compress_epi32(MaskOf(set), v);
  }
  static Vector Unpack(Vector v, uint32_t set) {
    return _mm512_maskz_expand_epi32(MaskOf(set), v);
  }
};

template <>
struct Elements<uint16_t> : InRegisters {
  static constexpr int kCount = 32;
  static uint32_t Bits(const Vector v[1]) {
    return _mm512_test_epi16_mask(v[0], v[0]);
  }
  static Vector Pack(Vector v, uint32_t set) {
    return _mm512_maskz_compress_epi16(set, v);
  }
  static Vector Unpack(Vector v, uint32_t set) {
    return _mm512_maskz_expand_epi16(set, v);
  }
};
#else
// For each mask of eight elements: `pack` lists the set ones, `unpack` says for
// each element which packed one it is, or 0xff.
struct Tables {
  uint8_t pack[256][8];
  uint8_t unpack[256][8];
  uint8_t pack16[256][16];  // the same in bytes of 16-bit elements
  uint8_t unpack16[256][16];
};

constexpr Tables MakeTables() {
  Tables t = {};
  for (int m = 0; m < 256; ++m) {
    int ones = 0;
    for (int i = 0; i < 8; ++i) {
      t.unpack[m][i] = 0xff;
      if (m >> i & 1) {
        t.unpack[m][i] = static_cast<uint8_t>(ones);
        t.pack[m][ones++] = static_cast<uint8_t>(i);
      }
    }
    for (int i = 0; i < 16; ++i) {
      t.pack16[m][i] = static_cast<uint8_t>(2 * t.pack[m][i / 2] + i % 2);
      t.unpack16[m][i] =
          t.unpack[m][i / 2] == 0xff
              ? 0xff
              : static_cast<uint8_t>(2 * t.unpack[m][i / 2] + i % 2);
    }
  }
  return t;
}

constexpr Tables kTables = MakeTables();

template <>
struct Elements<uint32_t> {
  using Vector = Ints;
  static constexpr int kCount = 8;
  static Vector Load(const char* p) { return LoadInts(p); }
  static void Store(Vector v, char* p) { StoreInts(v, p); }
  static Ints Indices(const uint8_t* bytes) {
    return _mm256_cvtepi8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  }
  static uint32_t Bits(const Vector v[4]) {
    uint32_t zeros = 0;
    for (int k = 0; k < 4; ++k) {
      zeros |= BitsOf(_mm256_cmpeq_epi32(v[k], Ints{})) << 8 * k;
    }
    return ~zeros;
  }
  static Vector Pack(Vector v, uint32_t set) {
    return _mm256_permutevar8x32_epi32(v, Indices(kTables.pack[set]));
  }
  static Vector Unpack(Vector v, uint32_t set) {
    const Ints index = Indices(kTables.unpack[set]);  // negative: zero
    return _mm256_andnot_si256(_mm256_srai_epi32(index, 31),
                               _mm256_permutevar8x32_epi32(v, index));
  }
};

template <>
struct Elements<uint16_t> {
  using Vector = HalfInts;
  static constexpr int kCount = 8;
  static Vector Load(const char* p) { return LoadHalf(p); }
  static void Store(Vector v, char* p) { StoreHalf(v, p); }
  static uint32_t Bits(const Vector v[4]) {
    const auto zeros = [v](int k) {
      return _mm_packs_epi16(_mm_cmpeq_epi16(v[k], HalfInts{}),
                             _mm_cmpeq_epi16(v[k + 1], HalfInts{}));
    };
    return ~static_cast<uint32_t>(
        _mm256_movemask_epi8(_mm256_set_m128i(zeros(2), zeros(0))));
  }
  static Vector Pack(Vector v, uint32_t set) {
    return _mm_shuffle_epi8(v, LoadHalf(kTables.pack16[set]));
  }
  static Vector Unpack(Vector v, uint32_t set) {
    return _mm_shuffle_epi8(v, LoadHalf(kTables.unpack16[set]));
  }
};
#endif

// 32 elements, and which of them are not zero.
template <class T>
struct Word {
  using E = Elements<T>;
  static constexpr int kVectors = 32 / E::kCount;
  static constexpr int kVectorBytes = E::kCount * sizeof(T);
  typename E::Vector v[kVectors];

  explicit Word(const char* p) {
    for (int k = 0; k < kVectors; ++k) v[k] = E::Load(p + kVectorBytes * k);
  }
  uint32_t Bits() const { return E::Bits(v); }
  // Those of vector k.
  static uint32_t Part(uint32_t bits, int k) {
    return bits >> E::kCount * k & (~0u >> (32 - E::kCount));
  }
};

template <class T>
int Count(const void* x) {
  const char* in = static_cast<const char*>(x);
  int count = 0;
  for (int w = 0; w < kMaskWords; ++w, in += 32 * sizeof(T)) {
    count += __builtin_popcount(Word<T>(in).Bits());
  }
  return count;
}

template <class T>
void Pack(const void* x, uint32_t* mask, void* values) {
  using W = Word<T>;
  const char* in = static_cast<const char*>(x);
  char* out = static_cast<char*>(values);
  for (int w = 0; w < kMaskWords; ++w, in += 32 * sizeof(T)) {
    for (size_t i = 0; i < 32 * sizeof(T); i += 64) {
      _mm_prefetch(in + kAhead + i, _MM_HINT_T0);
    }
    const W word(in);
    const uint32_t bits = word.Bits();
    for (int k = 0; k < W::kVectors; ++k) {
      const uint32_t set = W::Part(bits, k);
      Elements<T>::Store(Elements<T>::Pack(word.v[k], set), out);
      out += sizeof(T) * __builtin_popcount(set);
    }
    mask[w] = bits;
  }
}

template <class T>
void Unpack(const uint32_t* mask, const void* values, void* out) {
  using W = Word<T>;
  const char* in = static_cast<const char*>(values);
  char* to = static_cast<char*>(out);
  for (int w = 0; w < kMaskWords; ++w) {
    for (int k = 0; k < W::kVectors; ++k, to += W::kVectorBytes) {
      const uint32_t set = W::Part(mask[w], k);
      Elements<T>::Store(Elements<T>::Unpack(Elements<T>::Load(in), set), to);
      in += sizeof(T) * __builtin_popcount(set);
    }
  }
}

}  // namespace

constexpr ChunkKernels COMPTRAIN_NAME(kChunkKernels) = {
    {Count<uint16_t>, Count<uint32_t>},
    {Pack<uint16_t>, Pack<uint32_t>},
    {Unpack<uint16_t>, Unpack<uint32_t>},
    CountOnes};

}  // namespace comptrain::zvc
