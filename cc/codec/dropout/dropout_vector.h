// A vector of words as dropout_kernels.h takes it, for avx2.cc and avx512.cc.
#pragma once

#include "cc/codec/common/vector.h"
#include "cc/codec/dropout/dropout_kernels.h"

namespace comptrain {
namespace {

struct VectorWords {
  static constexpr int kWidth = comptrain::kWidth / 2;
  using Words = Ints;
  static Words All(uint64_t v) { return Ints{} + static_cast<int64_t>(v); }
  static Words Load(const uint64_t* p) { return LoadInts(p); }
  static Words And(Words a, Words b) { return a & b; }
  static uint32_t Spread(uint32_t bits, int k) {
    return _pdep_u32(bits, 0x11111111u << k);
  }
#if COMPTRAIN_IS_AVX512
  // GCC takes an operand that plain intrinsics do not use for uninitialized.
  static Words High(Words a) { return _mm512_maskz_srli_epi64(0xff, a, 32); }
  static Words Times(Words a, Words b) {
    return _mm512_maskz_mul_epu32(0xff, a, b);
  }
  static Words Xor(Words a, Words b, Words c) {
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
  }
  static uint32_t Greater(Words a, Words b) {
    return _mm512_cmpgt_epi64_mask(a, b);
  }
#else
  static Words High(Words a) { return _mm256_srli_epi64(a, 32); }
  static Words Times(Words a, Words b) { return _mm256_mul_epu32(a, b); }
  static Words Xor(Words a, Words b, Words c) { return a ^ b ^ c; }
  static uint32_t Greater(Words a, Words b) {
    return static_cast<uint32_t>(
        _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(a, b))));
  }
#endif
};

}  // namespace

constexpr DropoutKernels COMPTRAIN_NAME(kDropoutKernels) = {
    DrawBitsOf<VectorWords>};

}  // namespace comptrain
