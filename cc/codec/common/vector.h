// The widest vectors that a source is compiled for, under one set of names:
// loops are written once over them. For sources named avx2.cc, avx512.cc,
// *_avx2.cc and
// *_avx512.cc; COMPTRAIN_VECTORS is defined where the compiler has the set,
// and COMPTRAIN_IF_VECTORS(kernels) stands for {} where it has not.
//
// COMPTRAIN_V(add_ps) is the intrinsic of this name. Types and functions with
// another name are in vector_avx2.h and, alike, in vector_avx512.h: Floats and
// Ints, of 32 bits unless a name says otherwise; a Mask, a truth value an
// element. Integers add, shift and compare by intrinsics; & | ^ ~ take any.
//
// A source defines COMPTRAIN_SET, its set as it is in the names of functions,
// and includes what defines them: COMPTRAIN_NAME(PoolKernels, ) is
// PoolKernelsAvx2.
//
// All is static, or in unnamed namespaces where it is included: the linker must
// not give copies for a wide set to others.
#ifndef TF_COMPTRAIN_CC_CODEC_COMMON_VECTOR_H_
#define TF_COMPTRAIN_CC_CODEC_COMMON_VECTOR_H_

#if defined(__AVX512VBMI2__) && defined(__AVX512BW__) && defined(__BMI2__)
#include "cc/codec/common/vector_avx512.h"
#elif defined(__AVX2__) && defined(__BMI2__) && defined(__F16C__)
#include "cc/codec/common/vector_avx2.h"
#endif

#define COMPTRAIN_JOIN(before, set, after) before##set##after
#define COMPTRAIN_JOINED(before, set, after) COMPTRAIN_JOIN(before, set, after)
#define COMPTRAIN_NAME(before, after) \
  COMPTRAIN_JOINED(before, COMPTRAIN_SET, after)

#ifdef COMPTRAIN_VECTORS
#define COMPTRAIN_IF_VECTORS(value) (value)
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
#else  // no kernels for a machine without the set; the arguments are not read
#define COMPTRAIN_IF_VECTORS(value) \
  {                                 \
  }
#endif

#endif  // TF_COMPTRAIN_CC_CODEC_COMMON_VECTOR_H_
