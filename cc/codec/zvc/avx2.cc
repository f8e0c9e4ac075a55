// zvc with AVX2: eight elements at a time by tables of shuffles.
#include "cc/codec/zvc/kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>

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

// Bytes between the vector being packed and the one fetched: most of a chunk,
// so that reading goes on while the packed one is written.
constexpr int kAhead = 6144;

inline __m256i Load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline void Store(void* p, __m256i v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}
inline __m128i Load128(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
inline void Store128(void* p, __m128i v) {
  _mm_storeu_si128(static_cast<__m128i*>(p), v);
}

int Count32(const void* x) {
  const char* in = static_cast<const char*>(x);
  __m256i zeros[4] = {};
  for (int i = 0; i < kChunkValues * 4; i += 128) {
    for (int k = 0; k < 4; ++k) {
      const __m256i is_zero =
          _mm256_cmpeq_epi32(Load(in + i + 32 * k), _mm256_setzero_si256());
      zeros[k] = _mm256_sub_epi32(zeros[k], is_zero);
    }
  }
  alignas(32) int lanes[8];
  Store(lanes, _mm256_add_epi32(_mm256_add_epi32(zeros[0], zeros[1]),
                                _mm256_add_epi32(zeros[2], zeros[3])));
  int sum = 0;
  for (int v : lanes) sum += v;
  return kChunkValues - sum;
}

int Count16(const void* x) {
  const char* in = static_cast<const char*>(x);
  __m256i zeros[2] = {};
  for (int i = 0; i < kChunkValues * 2; i += 64) {
    for (int k = 0; k < 2; ++k) {
      const __m256i is_zero =
          _mm256_cmpeq_epi16(Load(in + i + 32 * k), _mm256_setzero_si256());
      zeros[k] = _mm256_sub_epi16(zeros[k], is_zero);
    }
  }
  alignas(32) short lanes[16];
  Store(lanes, _mm256_add_epi16(zeros[0], zeros[1]));
  int sum = 0;
  for (short v : lanes) sum += v;
  return kChunkValues - sum;
}

inline __m256i Indices(const uint8_t* bytes) {
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
      const __m256i v = Load(in);
      const __m256i is_zero = _mm256_cmpeq_epi32(v, _mm256_setzero_si256());
      const unsigned m =
          ~_mm256_movemask_ps(_mm256_castsi256_ps(is_zero)) & 0xff;
      Store(out, _mm256_permutevar8x32_epi32(v, Indices(kTables.pack[m])));
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
      v[k] = Load128(in + 16 * k);
      is_zero[k] = _mm_cmpeq_epi16(v[k], _mm_setzero_si128());
    }
    const __m256i zeros = _mm256_set_m128i(
        _mm_packs_epi16(is_zero[2], is_zero[3]),
        _mm_packs_epi16(is_zero[0], is_zero[1]));
    const uint32_t bits = ~static_cast<uint32_t>(_mm256_movemask_epi8(zeros));
    for (int k = 0; k < 4; ++k) {
      const unsigned m = bits >> (8 * k) & 0xff;
      Store128(out, _mm_shuffle_epi8(v[k], Load128(kTables.pack16[m])));
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
      const __m256i index = Indices(kTables.unpack[m]);  // negative: zero
      const __m256i v = _mm256_permutevar8x32_epi32(Load(in), index);
      Store(to, _mm256_andnot_si256(_mm256_srai_epi32(index, 31), v));
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
      Store128(to, _mm_shuffle_epi8(Load128(in), Load128(kTables.unpack16[m])));
      in += 2 * __builtin_popcount(m);
      to += 16;
    }
  }
}

}  // namespace

const ChunkKernels* Avx2ChunkKernels() {
  static const ChunkKernels kernels = {
      {Count16, Count32}, {Pack16, Pack32}, {Unpack16, Unpack32}, CountOnes};
  return &kernels;
}

}  // namespace zvc
}  // namespace comptrain

#else

namespace comptrain {
namespace zvc {
const ChunkKernels* Avx2ChunkKernels() { return nullptr; }
}  // namespace zvc
}  // namespace comptrain

#endif
