// bfloat16 and IEEE half as storage types, with bit-exact conversions: exact
// to float, round-to-nearest-even from float. A NaN stays a NaN, quiet, with
// its sign and the payload bits that fit (what F16C does).
#ifndef TF_COMPTRAIN_CC_CODEC_HALF_H_
#define TF_COMPTRAIN_CC_CODEC_HALF_H_

#include <cstdint>
#include <cstring>

#include "cc/codec/stream.h"

namespace comptrain {

struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

// Everything here is `static`: sources compiled for a wider instruction set
// include this header too, and must not share their copies with the others.

static inline uint32_t FloatBits(float v) {
  uint32_t u;
  std::memcpy(&u, &v, sizeof(u));
  return u;
}

static inline float FloatFromBits(uint32_t u) {
  float v;
  std::memcpy(&v, &u, sizeof(v));
  return v;
}

static inline float ToFloat(float v) { return v; }

static inline float ToFloat(BF16 v) {
  return FloatFromBits(static_cast<uint32_t>(v.bits) << 16);
}

static inline float ToFloat(F16 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16;
  const uint32_t exponent = (v.bits >> 10) & 0x1fu;
  const uint32_t mantissa = v.bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: a multiple of 2^-24, exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return FloatFromBits(sign | FloatBits(magnitude));
  }
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return FloatFromBits(sign | 0x7f800000u | quiet | (mantissa << 13));
  }
  return FloatFromBits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

static inline void FromFloat(float v, float* out) { *out = v; }

static inline void FromFloat(float v, BF16* out) {
  const uint32_t u = FloatBits(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) {
    out->bits = static_cast<uint16_t>((u >> 16) | 0x40u);
  } else {
    out->bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
}

// The half nearest to a magnitude (float bits, sign cleared) below 2^-14.
static inline uint32_t SubnormalHalfBits(uint32_t magnitude) {
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 102) return 0;  // below half of the smallest subnormal
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t shift = 126 - exponent;  // 14 .. 24
  const uint32_t kept = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1);
  const uint32_t middle = 1u << (shift - 1);
  return kept + (rest > middle || (rest == middle && (kept & 1u)) ? 1u : 0u);
}

static inline void FromFloat(float v, F16* out) {
  const uint32_t u = FloatBits(v);
  const uint32_t magnitude = u & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {
    half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  } else {
    half = SubnormalHalfBits(magnitude);
  }
  out->bits = static_cast<uint16_t>(((u >> 16) & 0x8000u) | half);
}

// Calls f with a value of the storage type of dtype: f(float()), f(BF16()) or
// f(F16()). The value only carries the type.
template <class F>
static inline void WithStorageType(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF32:
      return f(float());
    case DType::kBF16:
      return f(BF16());
    case DType::kF16:
      return f(F16());
  }
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_HALF_H_
