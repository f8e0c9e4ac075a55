// zvc with AVX2: eight elements at a time by tables of shuffles.
#include "cc/codec/common/vector.h"
#include "cc/codec/zvc/kernels.h"

#ifdef COMPTRAIN_VECTORS
namespace comptrain {
namespace zvc {
namespace {

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

int Count32(const void* x) {
  const char* in = static_cast<const char*>(x);
  Ints zeros[4] = {};
  for (int i = 0; i < kChunkValues * 4; i += 128) {
    for (int k = 0; k < 4; ++k) {
      const Ints is_zero =
          _mm256_cmpeq_epi32(LoadInts(in + i + 32 * k), Ints{});
      zeros[k] = _mm256_sub_epi32(zeros[k], is_zero);
    }
  }
  alignas(32) int lanes[8];
  StoreInts(_mm256_add_epi32(_mm256_add_epi32(zeros[0], zeros[1]),
                             _mm256_add_epi32(zeros[2], zeros[3])),
            lanes);
  int sum = 0;
  for (int v : lanes) sum += v;
  return kChunkValues - sum;
}

int Count16(const void* x) {
  const char* in = static_cast<const char*>(x);
  Ints zeros[2] = {};
  for (int i = 0; i < kChunkValues * 2; i += 64) {
    for (int k = 0; k < 2; ++k) {
      const Ints is_zero =
          _mm256_cmpeq_epi16(LoadInts(in + i + 32 * k), Ints{});
      zeros[k] = _mm256_sub_epi16(zeros[k], is_zero);
    }
  }
  alignas(32) short lanes[16];
  StoreInts(_mm256_add_epi16(zeros[0], zeros[1]), lanes);
  int sum = 0;
  for (short v : lanes) sum += v;
  return kChunkValues - sum;
}

inline Ints Indices(const uint8_t* bytes) {
  return _mm256_cvtepi8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
}

void Pack32(const void* x, uint32_t* mask, void* values) {
  const char* in = static_cast<const char*>(x);
  char* out = static_cast<char*>(values);
  for (int w = 0; w < kMaskWords; ++w) {
    _mm_prefetch(in + kAhead, _MM_HINT_T0);
    _mm_prefetch(in + kAhead + 64, _MM_HINT_T0);
    uint32_t bits = 0;
    for (int k = 0; k < 4; ++k) {
      const Ints v = LoadInts(in);
      const Ints is_zero = _mm256_cmpeq_epi32(v, Ints{});
      const unsigned m =
          ~_mm256_movemask_ps(_mm256_castsi256_ps(is_zero)) & 0xff;
      StoreInts(_mm256_permutevar8x32_epi32(v, Indices(kTables.pack[m])), out);
      out += 4 * __builtin_popcount(m);
      bits |= m << (8 * k);
      in += 32;
    }
    mask[w] = bits;
  }
}

void Pack16(const void* x, uint32_t* mask, void* values) {
  const char* in = static_cast<const char*>(x);
  char* out = static_cast<char*>(values);
  for (int w = 0; w < kMaskWords; ++w) {
    _mm_prefetch(in + kAhead, _MM_HINT_T0);
    __m128i v[4], is_zero[4];
    for (int k = 0; k < 4; ++k) {
      v[k] = LoadHalf(in + 16 * k);
      is_zero[k] = _mm_cmpeq_epi16(v[k], _mm_setzero_si128());
    }
    const Ints zeros =
        _mm256_set_m128i(_mm_packs_epi16(is_zero[2], is_zero[3]),
                         _mm_packs_epi16(is_zero[0], is_zero[1]));
    const uint32_t bits = ~static_cast<uint32_t>(_mm256_movemask_epi8(zeros));
    for (int k = 0; k < 4; ++k) {
      const unsigned m = bits >> (8 * k) & 0xff;
      StoreHalf(_mm_shuffle_epi8(v[k], LoadHalf(kTables.pack16[m])), out);
      out += 2 * __builtin_popcount(m);
    }
    mask[w] = bits;
    in += 64;
  }
}

void Unpack32(const uint32_t* mask, const void* values, void* out) {
  const char* in = static_cast<const char*>(values);
  char* to = static_cast<char*>(out);
  for (int w = 0; w < kMaskWords; ++w) {
    for (int k = 0; k < 4; ++k) {
      const unsigned m = mask[w] >> (8 * k) & 0xff;
      const Ints index = Indices(kTables.unpack[m]);  // negative: zero
      const Ints v = _mm256_permutevar8x32_epi32(LoadInts(in), index);
      StoreInts(_mm256_andnot_si256(_mm256_srai_epi32(index, 31), v), to);
      in += 4 * __builtin_popcount(m);
      to += 32;
    }
  }
}

void Unpack16(const uint32_t* mask, const void* values, void* out) {
  const char* in = static_cast<const char*>(values);
  char* to = static_cast<char*>(out);
  for (int w = 0; w < kMaskWords; ++w) {
    for (int k = 0; k < 4; ++k) {
      const unsigned m = mask[w] >> (8 * k) & 0xff;
      StoreHalf(_mm_shuffle_epi8(LoadHalf(in), LoadHalf(kTables.unpack16[m])),
                to);
      in += 2 * __builtin_popcount(m);
      to += 16;
    }
  }
}

const ChunkKernels* Table() {
  static const ChunkKernels kernels = {
      {Count16, Count32}, {Pack16, Pack32}, {Unpack16, Unpack32}, CountOnes};
  return &kernels;
}

}  // namespace
}  // namespace zvc
}  // namespace comptrain
#endif

namespace comptrain {
namespace zvc {

const ChunkKernels* Avx2ChunkKernels() { return COMPTRAIN_IF_VECTORS(Table()); }

}  // namespace zvc
}  // namespace comptrain
