// The widest vectors that a source is compiled for, under one set of names:
// loops are written once over them. For sources named avx2.cc, avx512.cc,
// *_avx2.cc and *_avx512.cc.
//
// COMPTRAIN_V(add_ps) is the intrinsic of this name. Types and functions with
// another name are in vector_avx2.h and, alike, in vector_avx512.h: Floats and
// Ints, of 32 bits unless a name says otherwise; a Mask, a truth value an
// element. Integers add, shift and compare by intrinsics; & | ^ ~ take any.
//
// COMPTRAIN_NAME(kPoolKernels) is kPoolKernelsAvx2 or kPoolKernelsAvx512.
//
// All is static, or in unnamed namespaces where it is included: the linker must
// not give copies for a wide set to others.
#pragma once

#if defined(__AVX512VBMI2__) && defined(__AVX512BW__) && defined(__BMI2__)
#include "cc/codec/common/vector_avx512.h"
#else
#include "cc/codec/common/vector_avx2.h"
#endif

namespace comptrain {

static inline Floats AllFloats(float v) { return COMPTRAIN_V(set1_ps)(v); }
static inline Ints AllInts(uint32_t v) {
  return COMPTRAIN_V(set1_epi32)(static_cast<int>(v));
}
static inline Ints All16(int v) {
  return COMPTRAIN_V(set1_epi16)(static_cast<int16_t>(v));
}
static inline Ints All8(int v) {
  return COMPTRAIN_V(set1_epi8)(static_cast<char>(v));
}

}  // namespace comptrain
