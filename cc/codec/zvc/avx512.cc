// zvc with AVX-512: compress and expand within registers. Their forms that
// go to memory are many times slower on some processors.
#include "cc/codec/zvc/kernels.h"

#if defined(__AVX512VBMI2__)
#include <immintrin.h>

namespace comptrain {
namespace zvc {
namespace {

// Bytes between the vector being packed and the one fetched: most of a chunk,
// so that reading goes on while the packed one is written.
constexpr int kAhead = 6144;

int Count32(const void* x) {
  const char* in = static_cast<const char*>(x);
  int count = 0;
  for (int i = 0; i < kChunkValues * 4; i += 64) {
    const __m512i v = _mm512_loadu_si512(in + i);
    count += __builtin_popcount(_mm512_test_epi32_mask(v, v));
  }
  return count;
}

int Count16(const void* x) {
  const char* in = static_cast<const char*>(x);
  int count = 0;
  for (int i = 0; i < kChunkValues * 2; i += 64) {
    const __m512i v = _mm512_loadu_si512(in + i);
    count += __builtin_popcount(_mm512_test_epi16_mask(v, v));
  }
  return count;
}

void Pack32(const void* x, uint32_t* mask, void* values) {
  const char* in = static_cast<const char*>(x);
  char* out = static_cast<char*>(values);
  for (int w = 0; w < kMaskWords; ++w) {
    const __m512i a = _mm512_loadu_si512(in);
    const __m512i b = _mm512_loadu_si512(in + 64);
    const __mmask16 m = _mm512_test_epi32_mask(a, a);
    const __mmask16 n = _mm512_test_epi32_mask(b, b);
    const uint32_t low = m, high = n;
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(m, a));
    out += 4 * __builtin_popcount(low);
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(n, b));
    out += 4 * __builtin_popcount(high);
    mask[w] = low | high << 16;
    _mm_prefetch(in + kAhead, _MM_HINT_T0);
    _mm_prefetch(in + kAhead + 64, _MM_HINT_T0);
    in += 128;
  }
}

void Pack16(const void* x, uint32_t* mask, void* values) {
  const char* in = static_cast<const char*>(x);
  char* out = static_cast<char*>(values);
  for (int w = 0; w < kMaskWords; ++w) {
    const __m512i v = _mm512_loadu_si512(in);
    const __mmask32 m = _mm512_test_epi16_mask(v, v);
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi16(m, v));
    out += 2 * __builtin_popcount(m);
    mask[w] = m;
    _mm_prefetch(in + kAhead, _MM_HINT_T0);
    in += 64;
  }
}

void Unpack32(const uint32_t* mask, const void* values, void* out) {
  const char* in = static_cast<const char*>(values);
  char* to = static_cast<char*>(out);
  for (int w = 0; w < kMaskWords; ++w) {
    const uint32_t low = mask[w] & 0xffff, high = mask[w] >> 16;
    const __m512i a = _mm512_loadu_si512(in);
    in += 4 * __builtin_popcount(low);
    const __m512i b = _mm512_loadu_si512(in);
    in += 4 * __builtin_popcount(high);
    _mm512_storeu_si512(
        to, _mm512_maskz_expand_epi32(static_cast<__mmask16>(low), a));
    _mm512_storeu_si512(
        to + 64, _mm512_maskz_expand_epi32(static_cast<__mmask16>(high), b));
    to += 128;
  }
}

void Unpack16(const uint32_t* mask, const void* values, void* out) {
  const char* in = static_cast<const char*>(values);
  char* to = static_cast<char*>(out);
  for (int w = 0; w < kMaskWords; ++w) {
    const __m512i v = _mm512_loadu_si512(in);
    in += 2 * __builtin_popcount(mask[w]);
    _mm512_storeu_si512(to, _mm512_maskz_expand_epi16(mask[w], v));
    to += 64;
  }
}

}  // namespace

const ChunkKernels* Avx512ChunkKernels() {
  static const ChunkKernels kernels = {
      {Count16, Count32}, {Pack16, Pack32}, {Unpack16, Unpack32}, CountOnes};
  return &kernels;
}

}  // namespace zvc
}  // namespace comptrain

#else

namespace comptrain {
namespace zvc {
const ChunkKernels* Avx512ChunkKernels() { return nullptr; }
}  // namespace zvc
}  // namespace comptrain

#endif
