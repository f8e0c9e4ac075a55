// zvc with AVX-512: compress and expand within registers. Their forms that
// go to memory are many times slower on some processors.
#include "cc/codec/common/vector.h"
#include "cc/codec/zvc/kernels.h"

#ifdef COMPTRAIN_VECTORS
namespace comptrain {
namespace zvc {
namespace {

int Count32(const void* x) {
  const char* in = static_cast<const char*>(x);
  int count = 0;
  for (int i = 0; i < kChunkValues * 4; i += 64) {
    const Ints v = LoadInts(in + i);
    count += __builtin_popcount(_mm512_test_epi32_mask(v, v));
  }
  return count;
}

int Count16(const void* x) {
  const char* in = static_cast<const char*>(x);
  int count = 0;
  for (int i = 0; i < kChunkValues * 2; i += 64) {
    const Ints v = LoadInts(in + i);
    count += __builtin_popcount(_mm512_test_epi16_mask(v, v));
  }
  return count;
}

void Pack32(const void* x, uint32_t* mask, void* values) {
  const char* in = static_cast<const char*>(x);
  char* out = static_cast<char*>(values);
  for (int w = 0; w < kMaskWords; ++w) {
    const Ints a = LoadInts(in);
    const Ints b = LoadInts(in + 64);
    const __mmask16 m = _mm512_test_epi32_mask(a, a);
    const __mmask16 n = _mm512_test_epi32_mask(b, b);
    const uint32_t low = m, high = n;
    StoreInts(_mm512_maskz_compress_epi32(m, a), out);
    out += 4 * __builtin_popcount(low);
    StoreInts(_mm512_maskz_compress_epi32(n, b), out);
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
    const Ints v = LoadInts(in);
    const __mmask32 m = _mm512_test_epi16_mask(v, v);
    StoreInts(_mm512_maskz_compress_epi16(m, v), out);
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
    const Ints a = LoadInts(in);
    in += 4 * __builtin_popcount(low);
    const Ints b = LoadInts(in);
    in += 4 * __builtin_popcount(high);
    StoreInts(_mm512_maskz_expand_epi32(static_cast<__mmask16>(low), a), to);
    StoreInts(_mm512_maskz_expand_epi32(static_cast<__mmask16>(high), b),
              to + 64);
    to += 128;
  }
}

void Unpack16(const uint32_t* mask, const void* values, void* out) {
  const char* in = static_cast<const char*>(values);
  char* to = static_cast<char*>(out);
  for (int w = 0; w < kMaskWords; ++w) {
    const Ints v = LoadInts(in);
    in += 2 * __builtin_popcount(mask[w]);
    StoreInts(_mm512_maskz_expand_epi16(mask[w], v), to);
    to += 64;
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

const ChunkKernels* Avx512ChunkKernels() {
  return COMPTRAIN_IF_VECTORS(Table());
}

}  // namespace zvc
}  // namespace comptrain
