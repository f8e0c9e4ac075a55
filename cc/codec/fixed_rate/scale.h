// The scale of a group: a byte k stands for 2^(k / 4), from 2^0.25 to 2^63.75;
// 0 for 0.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/codec/common/half.h"

namespace comptrain {

constexpr int kScaleMantissaBits = 23, kScaleExponentOf1 = 127;
constexpr uint32_t kScaleMantissa = (1u << kScaleMantissaBits) - 1;
// Mantissas of 2^(i / 4).
constexpr uint32_t kScaleQuarters[4] = {0, 0x1837f0, 0x3504f3, 0x5744fd};

// The scale of a group with the tensor's bound. Groups of small values have
// smaller ones: at a fixed rate a finer step takes no more bits.
constexpr float kScaleOfBound = 0x1p25f;

// The smallest scale that is no smaller than x; the largest where none is.
inline uint8_t ScaleCodeFor(float x) {
  if (!(x > 0)) return 0;
  const uint32_t bits = FloatBits(std::max(x, 1.0f));
  const uint32_t mantissa = bits & kScaleMantissa;
  uint32_t code = ((bits >> kScaleMantissaBits) - kScaleExponentOf1) << 2;
  for (uint32_t least : kScaleQuarters) code += mantissa > least;
  return static_cast<uint8_t>(std::clamp<uint32_t>(code, 1, 255));
}

inline float ScaleOf(uint8_t code) {
  if (code == 0) return 0;
  const uint32_t exponent = (code >> 2) + kScaleExponentOf1;
  return BitsFloat(exponent << kScaleMantissaBits | kScaleQuarters[code & 3]);
}

}  // namespace comptrain
