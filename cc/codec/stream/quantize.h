// The arithmetic of plane and rans for one value, in plain C++: its
// definition. docs/codec-format.md explains it.
//
// Everything is `static`: sources for wider instruction sets may include this.
#pragma once

#include <cmath>

#include "cc/codec/common/half.h"
#include "cc/codec/common/host_device.h"
#include "cc/codec/stream/quantizer.h"

namespace comptrain {

constexpr int kMinCode = -32768, kMaxCode = 32767;

// Zeros of either sign and f32 subnormals.
COMPTRAIN_HD static inline bool CountsAsZero(float x) {
  return (FloatBits(x) & 0x7f800000) == 0;
}

// Nearest even, for |t| < 2^22: the sum has no bits left below the point, and
// its bits count from those of the number that is added. Beyond 2^22 either way
// for other t, NaN among them.
COMPTRAIN_HD static inline int RoundToEven(float t) {
  const float magic = 12582912.0f;
  return static_cast<int>(FloatBits(t + magic) - FloatBits(magic));
}

// a * b + c where a * b is exact, so that a GPU's single instruction gives the
// same bits.
COMPTRAIN_HD static inline float AddExactProduct(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

// The offset of value number i, in units of 2^-17 steps: an odd number, one of
// 2^16 between -1/2 and 1/2 step, with a mean of 0.
constexpr float kDitherUnit = 0x1p-17f;
COMPTRAIN_HD static inline float DitherOf(uint32_t i) {
  uint32_t h = i * kDitherMix1;
  h ^= h >> 15;
  h *= kDitherMix2;
  return static_cast<float>((static_cast<int32_t>(h) >> 15) | 1);
}

// Codes are below this; codes beyond kMinCode and kMaxCode are cut off, and do
// not hold their bounds then.
constexpr int kNoCode = 65536;

// The code of x before that, kNoCode or further from 0 where there is none. i:
// number of the value, for dither. Without a branch: a GPU's threads are to
// stay together.
template <Coding kCoding>
COMPTRAIN_HD static inline int CodeOf(const Quantizer& q, float x, uint32_t i) {
  const float t = x * q.inv;
  int c;
  if (kCoding == Coding::kMidRise) {
    c = static_cast<int>(std::fmin(std::fabs(t), static_cast<float>(kNoCode))) +
        1;
    if (x < 0) c = -c;
  } else if (kCoding == Coding::kDither) {
    c = RoundToEven(AddExactProduct(DitherOf(i), kDitherUnit, t)) - q.centre;
    if (c >= 0) c = static_cast<int>(static_cast<uint32_t>(c) + 1);
  } else {
    return RoundToEven(t);
  }
  return CountsAsZero(x) ? 0 : c;
}

COMPTRAIN_HD static inline bool IsCode(int c) {
  return -kNoCode < c && c < kNoCode;
}
COMPTRAIN_HD static inline int CutOff(int c) {
  return c < kMinCode ? kMinCode : c > kMaxCode ? kMaxCode : c;
}

// False when x has no code; *code is some code then.
template <Coding kCoding>
COMPTRAIN_HD static inline bool QuantizeValue(const Quantizer& q, float x,
                                              uint32_t i, int* code) {
  const int c = CodeOf<kCoding>(q, x, i);
  *code = CutOff(c);
  return IsCode(c);
}

template <Coding kCoding>
COMPTRAIN_HD static inline float DequantizeValue(const Quantizer& q, int code,
                                                 uint32_t i) {
  if (kCoding == Coding::kDither) {
    const float level = static_cast<float>(code - (code > 0) + q.centre);
    const float x = AddExactProduct(DitherOf(i), -kDitherUnit, level) * q.step;
    return code == 0 ? 0.0f : x;
  }
  if (kCoding == Coding::kMidRise) {  // (code -+ 1/2) steps; exact in halves
    const int sign = code > 1 ? 1 : code < -1 ? -1 : code;
    return static_cast<float>(2 * code - sign) * (0.5f * q.step);
  }
  return static_cast<float>(code) * q.step;
}

// Larger codes, and those below SmallestSafe, have to be compared with their
// values; both less the magnitude of the centre.
constexpr int kLargestSafe = 255;
COMPTRAIN_HD static constexpr int SmallestSafe(Coding coding) {
  return coding == Coding::kDither ? -255 : -256;
}

// q: of the code's channel, or of all where codes are below kLargestSafe.
template <Coding kCoding>
COMPTRAIN_HD static inline bool NeedsCheck(const Quantizer& q, int code) {
  const int centre = q.centre < 0 ? -q.centre : q.centre;
  return code > kLargestSafe - centre || code < SmallestSafe(kCoding) + centre;
}

template <Coding kCoding>
COMPTRAIN_HD static inline bool CodeWithinBound(const Quantizer& q, float x,
                                                int code, uint32_t i) {
  const float x_hat = DequantizeValue<kCoding>(q, code, i);
  return std::fabs(x - x_hat) <= q.eb && std::fabs(x_hat) < q.limit;
}

}  // namespace comptrain
