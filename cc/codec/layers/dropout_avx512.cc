#include "cc/codec/layers/dropout_kernels.h"

#if defined(__AVX512VBMI2__)
#include <immintrin.h>

namespace comptrain {
namespace {

// GCC takes an operand that plain intrinsics do not use for uninitialized.
struct Vector8 {
  static constexpr int kWidth = 8;
  using Words = __m512i;
  static Words All(uint64_t v) {
    return _mm512_set1_epi64(static_cast<int64_t>(v));
  }
  static Words Load(const uint64_t* p) { return _mm512_loadu_si512(p); }
  static Words High(Words a) { return _mm512_maskz_srli_epi64(0xff, a, 32); }
  static Words Times(Words a, Words b) {
    return _mm512_maskz_mul_epu32(0xff, a, b);
  }
  static Words And(Words a, Words b) { return _mm512_and_si512(a, b); }
  static Words Xor(Words a, Words b, Words c) {
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
  }
  static uint32_t Greater(Words a, Words b) {
    return _mm512_cmpgt_epi64_mask(a, b);
  }
  static uint32_t Spread(uint32_t bits, int k) {
    return _pdep_u32(bits, 0x11111111u << k);
  }
};

}  // namespace

DrawBits DrawBitsAvx512() { return DrawBitsOf<Vector8>; }

}  // namespace comptrain

#else

namespace comptrain {
DrawBits DrawBitsAvx512() { return nullptr; }
}  // namespace comptrain

#endif
