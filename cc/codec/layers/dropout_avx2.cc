#include "cc/codec/layers/dropout_kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>

namespace comptrain {
namespace {

struct Vector4 {
  static constexpr int kWidth = 4;
  using Words = __m256i;
  static Words All(uint64_t v) {
    return _mm256_set1_epi64x(static_cast<int64_t>(v));
  }
  static Words Load(const uint64_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Words High(Words a) { return _mm256_srli_epi64(a, 32); }
  static Words Times(Words a, Words b) { return _mm256_mul_epu32(a, b); }
  static Words And(Words a, Words b) { return _mm256_and_si256(a, b); }
  static Words Xor(Words a, Words b, Words c) {
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
  }
  static uint32_t Greater(Words a, Words b) {
    return static_cast<uint32_t>(
        _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(a, b))));
  }
  static uint32_t Spread(uint32_t bits, int k) {
    return _pdep_u32(bits, 0x11111111u << k);
  }
};

}  // namespace

DrawBits DrawBitsAvx2() { return DrawBitsOf<Vector4>; }

}  // namespace comptrain

#else

namespace comptrain {
DrawBits DrawBitsAvx2() { return nullptr; }
}  // namespace comptrain

#endif
