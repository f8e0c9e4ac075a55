// The arithmetic common to codecs A and B for one value, in plain C++.
//
// Everything is `static`: sources for wider instruction sets may include this.
#ifndef TF_COMPTRAIN_CC_CODEC_QUANTIZE_H_
#define TF_COMPTRAIN_CC_CODEC_QUANTIZE_H_

#include <cmath>

#include "cc/codec/half.h"
#include "cc/codec/plane_tile.h"

namespace comptrain {

constexpr int kMinCode = -32768, kMaxCode = 32767;

// Zeros of either sign and f32 subnormals.
static inline bool CountsAsZero(float x) {
  return (FloatBits(x) & 0x7f800000) == 0;
}

// Nearest even, for |t| < 2^22: the sum has no bits left below the point.
static inline float RoundToEven(float t) {
  const float magic = 12582912.0f;
  return (t + magic) - magic;
}

// False when x has no code.
template <bool kMidRiseCodes>
static inline bool QuantizeValue(const plane::Quantizer& q, float x,
                                 int* code) {
  const float t = x * q.inv;
  if (!(std::fabs(t) < 65536.0f)) return false;
  int c;
  if (kMidRiseCodes) {
    c = static_cast<int>(std::fabs(t)) + 1;
    if (CountsAsZero(x)) c = 0;
    if (x < 0) c = -c;
  } else {
    c = static_cast<int>(RoundToEven(t));
  }
  *code = c < kMinCode ? kMinCode : c > kMaxCode ? kMaxCode : c;
  return true;
}

template <bool kMidRiseCodes>
static inline float DequantizeValue(const plane::Quantizer& q, int code) {
  float level = static_cast<float>(code);
  if (kMidRiseCodes) level -= code > 0 ? 0.5f : code < 0 ? -0.5f : 0.0f;
  return level * q.step;
}

// Codes outside -256 .. 255 have to be compared with their values.
static inline bool NeedsCheck(int code) { return code > 255 || code < -256; }

template <bool kMidRiseCodes>
static inline bool CodeWithinBound(const plane::Quantizer& q, float x,
                                   int code) {
  const float x_hat = DequantizeValue<kMidRiseCodes>(q, code);
  return std::fabs(x - x_hat) <= q.eb && std::fabs(x_hat) < q.limit;
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_QUANTIZE_H_
