// The arithmetic of plane and rans for a vector of values. Same results, to the
// bit, as quantize.h.
#ifndef TF_COMPTRAIN_CC_CODEC_STREAM_QUANTIZE_VECTOR_H_
#define TF_COMPTRAIN_CC_CODEC_STREAM_QUANTIZE_VECTOR_H_

#include "cc/codec/common/vector.h"
#include "cc/codec/stream/quantize.h"

#define V COMPTRAIN_V

namespace comptrain {

// DitherOf(first), DitherOf(first + 1), ...
static inline Floats Dithers(uint32_t first) {
  const Ints i = V(add_epi32)(AllInts(first), Iota());
  Ints h = V(mullo_epi32)(i, AllInts(kDitherMix1));
  h = h ^ V(srli_epi32)(h, 15);
  h = V(mullo_epi32)(h, AllInts(kDitherMix2));
  const Floats top = V(cvtepi32_ps)(V(srai_epi32)(h, 16));
  return (top + AllFloats(0.5f)) * AllFloats(0x1p-16f);
}

// INT32_MIN, or next to it, where there is no code. first: number of the first
// value, for dither.
template <Coding kCoding>
static inline Ints QuantizeVector(Floats x, Floats inv, uint32_t first) {
  const Floats t = x * inv, smallest = AllFloats(0x1p-126f);
  if (kCoding == Coding::kPlain) return V(cvtps_epi32)(t);
  if (kCoding == Coding::kDither) {
    const Ints level = V(cvtps_epi32)(t + Dithers(first));
    return Keep(Increment(level, Greater(level, AllInts(~0u))),
                Compare<_CMP_NLT_UQ>(Abs(x), smallest));
  }
  const Ints q =
      Increment(V(cvttps_epi32)(t), Compare<_CMP_GE_OQ>(x, smallest));
  return Decrement(q, Compare<_CMP_LE_OQ>(x, AllFloats(-0x1p-126f)));
}

// q >= 0 where kSigned is false.
template <Coding kCoding, bool kSigned = true>
static inline Floats DequantizeVector(Ints q, Floats step, uint32_t first) {
  if (kCoding == Coding::kDither) {
    const Floats level = V(cvtepi32_ps)(Decrement(q, Greater(q, Ints{})));
    return Keep((level - Dithers(first)) * step, NotZero(q));
  }
  Floats level = V(cvtepi32_ps)(q);
  if (kCoding == Coding::kMidRise && kSigned) {
    level = LessHalfSign(level, q);
  } else if (kCoding == Coding::kMidRise) {
    level = V(max_ps)(level - AllFloats(0.5f), Floats{});
  }
  return level * step;
}

// Where a code does not represent its value within the bound.
template <Coding kCoding>
static inline Mask OutsideBound(Floats x, Ints q, const Quantizer& quant,
                                uint32_t first) {
  const Floats x_hat =
      DequantizeVector<kCoding>(q, AllFloats(quant.step), first);
  return Compare<_CMP_NLE_UQ>(Abs(x - x_hat), AllFloats(quant.eb)) |
         Compare<_CMP_NLT_UQ>(Abs(x_hat), AllFloats(quant.limit));
}

}  // namespace comptrain

#undef V

#endif  // TF_COMPTRAIN_CC_CODEC_STREAM_QUANTIZE_VECTOR_H_
