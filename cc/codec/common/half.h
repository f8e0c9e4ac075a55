// bfloat16 and IEEE half, in plain integers: exact to float, round to nearest
// even from float. A NaN stays a NaN, quiet, with its sign and the payload
// bits that fit. The same bits as the conversion instructions of CPUs give;
// those of GPUs make other NaNs.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/codec/common/host_device.h"
#include "cc/codec/common/dtype.h"

namespace comptrain {

// Everything here is `static`: sources compiled for a wider instruction set
// include this header too, and the linker must not give their copies to others.

COMPTRAIN_HD static inline uint32_t FloatBits(float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  return b;
}

COMPTRAIN_HD static inline float BitsFloat(uint32_t b) {
  float x;
  std::memcpy(&x, &b, sizeof x);
  return x;
}

COMPTRAIN_HD static inline float BF16ToFloat(uint16_t h) {
  return BitsFloat(static_cast<uint32_t>(h) << 16);
}

COMPTRAIN_HD static inline uint16_t FloatToBF16(float x) {
  const uint32_t b = FloatBits(x);
  if ((b & 0x7fffffff) > 0x7f800000) {
    return static_cast<uint16_t>(b >> 16 | 0x40);
  }
#if __CUDA_ARCH__ >= 800
  uint16_t h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
#else
  return static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
#endif
}

COMPTRAIN_HD static inline float F16ToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = h >> 10 & 31, fraction = h & 0x3ff;
  if (exponent == 31) {
    const uint32_t quiet = fraction != 0 ? 0x400000 : 0;
    return BitsFloat(sign | 0x7f800000 | quiet | fraction << 13);
  }
#ifdef __CUDA_ARCH__
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
#else
  if (exponent == 0) {  // zero or subnormal: a multiple of 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return BitsFloat(sign | FloatBits(magnitude));
  }
  return BitsFloat(sign | (exponent + 112) << 23 | fraction << 13);
#endif
}

COMPTRAIN_HD static inline uint16_t FloatToF16(float x) {
  const uint32_t b = FloatBits(x);
  const uint32_t sign = b >> 16 & 0x8000, magnitude = b & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  }
#ifdef __CUDA_ARCH__
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
#else
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x33000000) return static_cast<uint16_t>(sign);
  uint32_t fraction, shift;
  if (magnitude < 0x38800000) {  // the result is subnormal
    fraction = (magnitude & 0x7fffff) | 0x800000;
    shift = 126 - (magnitude >> 23);
  } else {
    fraction = magnitude - 0x38000000;
    shift = 13;
  }
  const uint32_t rest = fraction & ((1u << shift) - 1);
  const uint32_t half = 1u << (shift - 1);
  uint32_t result = fraction >> shift;
  result += rest > half || (rest == half && (result & 1));
  return static_cast<uint16_t>(sign | result);
#endif
}

// Element i of an array of any dtype.
COMPTRAIN_HD static inline float LoadFloat(const void* x, DType dtype,
                                           int64_t i) {
  const uint8_t* p = static_cast<const uint8_t*>(x);
  if (dtype == DType::kF32) {
    float f;
    std::memcpy(&f, p + 4 * i, sizeof f);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, p + 2 * i, sizeof h);
  return dtype == DType::kBF16 ? BF16ToFloat(h) : F16ToFloat(h);
}

COMPTRAIN_HD static inline void StoreFloat(float f, DType dtype, void* out,
                                           int64_t i) {
  uint8_t* p = static_cast<uint8_t*>(out);
  if (dtype == DType::kF32) {
    std::memcpy(p + 4 * i, &f, sizeof f);
    return;
  }
  const uint16_t h = dtype == DType::kBF16 ? FloatToBF16(f) : FloatToF16(f);
  std::memcpy(p + 2 * i, &h, sizeof h);
}

// The same as types, for loops that are templates on the storage type.

struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

COMPTRAIN_HD static inline float ToFloat(float v) { return v; }
COMPTRAIN_HD static inline float ToFloat(BF16 v) { return BF16ToFloat(v.bits); }
COMPTRAIN_HD static inline float ToFloat(F16 v) { return F16ToFloat(v.bits); }

COMPTRAIN_HD static inline void FromFloat(float v, float* out) { *out = v; }
COMPTRAIN_HD static inline void FromFloat(float v, BF16* out) {
  out->bits = FloatToBF16(v);
}
COMPTRAIN_HD static inline void FromFloat(float v, F16* out) {
  out->bits = FloatToF16(v);
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
