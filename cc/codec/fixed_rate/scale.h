// The scale of a group: a byte k stands for 2^(k / 4), from 2^0.25 to 2^63.75;
// 0 for 0.
#pragma once

#include <cstdint>

#include "cc/codec/common/half.h"
#include "cc/codec/common/host_device.h"
#include "cc/codec/stream/bound.h"

namespace comptrain {

constexpr int kScaleMantissaBits = 23, kScaleExponentOf1 = 127;
constexpr uint32_t kScaleMantissa = (1u << kScaleMantissaBits) - 1;

// The scale of a group with the tensor's bound. Groups of small values have
// smaller ones: at a fixed rate a finer step takes no more bits.
constexpr float kScaleOfBound = 0x1p25f;

// The mantissa of 2^(i / 4), i below 4.
COMPTRAIN_HD inline uint32_t ScaleQuarter(uint32_t i) {
  return i == 0 ? 0 : i == 1 ? 0x1837f0 : i == 2 ? 0x3504f3 : 0x5744fd;
}

// The smallest scale that is no smaller than x; the largest where none is.
COMPTRAIN_HD inline uint8_t ScaleCodeFor(float x) {
  if (!(x > 0)) return 0;
  const uint32_t bits = FloatBits(x > 1 ? x : 1);
  const uint32_t mantissa = bits & kScaleMantissa;
  uint32_t code = ((bits >> kScaleMantissaBits) - kScaleExponentOf1) << 2;
  for (uint32_t i = 0; i < 4; ++i) code += mantissa > ScaleQuarter(i);
  return static_cast<uint8_t>(code < 1 ? 1 : code > 255 ? 255 : code);
}

COMPTRAIN_HD inline float ScaleOf(uint8_t code) {
  if (code == 0) return 0;
  const uint32_t exponent = (code >> 2) + kScaleExponentOf1;
  return BitsFloat(exponent << kScaleMantissaBits | ScaleQuarter(code & 3));
}

// The step of a scale of 1, of a tensor with this bound.
COMPTRAIN_HD inline float StepOfScale1(float bound) {
  return bound * (kStepOverBound / kScaleOfBound);
}

}  // namespace comptrain
