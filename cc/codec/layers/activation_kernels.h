// Internal: the loops of activation.h for one stretch of elements, one table
// for each instruction set. All tables give the same bytes.
#pragma once

#include <cstdint>

#include "cc/codec/common/isa.h"
#include "cc/codec/common/half.h"

namespace comptrain {

// Indexed by Activation and DType; n is any size.
struct ActivationKernels {
  void (*forward[3][3])(const void* x, int64_t n, void* y);
  void (*gradient[3][3])(const void* x, int64_t n, const void* dy, void* dx);
};

COMPTRAIN_KERNEL_TABLES(ActivationKernels)

// exp(a) for a <= 0, 1e-38 below -87; NaN stays. Without branches: compilers
// make vectors of it.
static inline float ExpOfNegative(float a) {
  a = a < -87.0f ? -87.0f : a;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: sums have no fraction
  const float shifted = a * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r =
      (a - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  // n is in the low bits of `shifted`, and goes to the exponent.
  return p * BitsFloat((FloatBits(shifted) + 127) << 23);
}

struct Normal {
  float phi;  // exp(-x^2 / 2): the density but for its factor
  float Phi;  // the distribution
};

static inline Normal NormalAt(float x) {
  const float z = 0.70710678f * (x < 0 ? -x : x);
  const float phi = ExpOfNegative(-0.5f * (x * x));
  // exp(z^2) erfc(z) = t q(t), q fitted to a relative error of 5e-8 on
  // [0, 10.5].
  const float t = 1.0f / (1.0f + 0.5f * z);
  float q = -0.05919356644153595f;
  q = q * t + 0.28518393635749817f;
  q = q * t - 0.48846307396888733f;
  q = q * t + 0.27951496839523315f;
  q = q * t - 0.02762497216463089f;
  q = q * t + 0.20311053097248077f;
  q = q * t + 0.2429964691400528f;
  q = q * t + 0.2823900878429413f;
  q = q * t + 0.2820855677127838f;
  const float tail = 0.5f * phi * (t * q);
  return {phi, x < 0 ? tail : 1.0f - tail};
}

struct Gelu {
  static float Factor(float x) { return NormalAt(x).Phi; }
  static float Slope(float x) {
    const Normal normal = NormalAt(x);
    return normal.Phi + x * (0.39894228f * normal.phi);
  }
};

struct Silu {
  static float Factor(float x) {
    const float e = ExpOfNegative(x < 0 ? x : -x);
    return (x < 0 ? e : 1.0f) / (1.0f + e);
  }
  static float Slope(float x) {
    const float sigmoid = Factor(x);
    return sigmoid * (1.0f + x * (1.0f - sigmoid));
  }
};

struct TanhGelu {
  static float Factor(float x) { return Silu::Factor(TwiceU(Clamped(x))); }
  static float Slope(float x) {
    const float v = Clamped(x);
    const float twice_u = TwiceU(v);
    const float e = ExpOfNegative(twice_u < 0 ? twice_u : -twice_u);
    const float r = 1.0f / (1.0f + e);
    const float s = twice_u < 0 ? e * r : r;  // and s (1 - s) = e r^2
    return s + v * (e * r * r) * (kScale + 3 * kCubic * (v * v));
  }

 private:
  static constexpr float kScale = 1.5957691216f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f * kScale;
  // Beyond, the factor is 0 or 1, and cubes may overflow; NaN stays.
  static float Clamped(float x) {
    x = x < -16.0f ? -16.0f : x;
    return x > 16.0f ? 16.0f : x;
  }
  static float TwiceU(float x) { return x * (kScale + kCubic * (x * x)); }
};

// Elements that are converted at a time.
constexpr int64_t kActivationBlock = 64;

template <class Function, class T>
static inline void ForwardOf(const void* x, int64_t n, void* y) {
  const T* in = static_cast<const T*>(x);
  T* out = static_cast<T*>(y);
  for (int64_t i = 0; i < n; i += kActivationBlock) {
    const int64_t count = n - i < kActivationBlock ? n - i : kActivationBlock;
    float v[kActivationBlock] = {};
    for (int64_t j = 0; j < count; ++j) v[j] = ToFloat(in[i + j]);
    for (int64_t j = 0; j < kActivationBlock; ++j) {
      v[j] *= Function::Factor(v[j]);
    }
    for (int64_t j = 0; j < count; ++j) FromFloat(v[j], &out[i + j]);
  }
}

template <class Function, class T>
static inline void GradientOf(const void* x, int64_t n, const void* dy,
                              void* dx) {
  const T* in = static_cast<const T*>(x);
  const T* gradient = static_cast<const T*>(dy);
  T* out = static_cast<T*>(dx);
  for (int64_t i = 0; i < n; i += kActivationBlock) {
    const int64_t count = n - i < kActivationBlock ? n - i : kActivationBlock;
    float v[kActivationBlock] = {}, g[kActivationBlock] = {};
    for (int64_t j = 0; j < count; ++j) v[j] = ToFloat(in[i + j]);
    for (int64_t j = 0; j < count; ++j) g[j] = ToFloat(gradient[i + j]);
    for (int64_t j = 0; j < kActivationBlock; ++j) {
      g[j] *= Function::Slope(v[j]);
    }
    for (int64_t j = 0; j < count; ++j) FromFloat(g[j], &out[i + j]);
  }
}

static constexpr ActivationKernels ActivationTable() {
  return {
      {{ForwardOf<Gelu, float>, ForwardOf<Gelu, BF16>, ForwardOf<Gelu, F16>},
       {ForwardOf<Silu, float>, ForwardOf<Silu, BF16>, ForwardOf<Silu, F16>},
       {ForwardOf<TanhGelu, float>, ForwardOf<TanhGelu, BF16>,
        ForwardOf<TanhGelu, F16>}},
      {{GradientOf<Gelu, float>, GradientOf<Gelu, BF16>, GradientOf<Gelu, F16>},
       {GradientOf<Silu, float>, GradientOf<Silu, BF16>, GradientOf<Silu, F16>},
       {GradientOf<TanhGelu, float>, GradientOf<TanhGelu, BF16>,
        GradientOf<TanhGelu, F16>}}};
}

}  // namespace comptrain
