// Values, encoding, decoding and the promise, for the tests of all codecs.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/codec/registry/codec.h"
#include "cc/codec/common/half.h"
#include "cc/codec/testing/data.h"
#include "cc/codec/testing/isas.h"
#include "cc/codec/testing/threads.h"
#include "cc/codec/testing/harness.h"

namespace comptrain {

using Bytes = std::vector<uint8_t>;

constexpr Coding kCodings[] = {Coding::kPlain, Coding::kMidRise,
                               Coding::kDither};

// Values as they are in a tensor of dtype.
inline Bytes ToTensor(const std::vector<float>& values, DType dtype) {
  Bytes x(values.size() * ItemBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    StoreFloat(values[i], dtype, x.data(), i);
  }
  return x;
}

inline EncodeParams Params(DType dtype, int64_t n, int64_t channels, float eb,
                           bool mid_rise, int64_t width = 8) {
  EncodeParams p;
  p.dtype = dtype;
  p.n = n;
  p.channels = channels;
  p.eb = eb;
  p.mid_rise = mid_rise;
  p.width = width;
  return p;
}

inline EncodeParams ParamsOf(DType dtype, int64_t n, int64_t channels, float eb,
                             Coding coding, int64_t width = 8) {
  EncodeParams p =
      Params(dtype, n, channels, eb, coding == Coding::kMidRise, width);
  p.dither = coding == Coding::kDither;
  return p;
}

struct Encoded {
  Bytes stream;
  int64_t nonzero = 0;
};

// scratch_bytes < 0: as many as the encoder wants.
inline Encoded EncodeWithStats(CodecId codec, const Bytes& x,
                               const EncodeParams& p, Isa isa = Isa::kBest,
                               const ParallelFor& parallel = SerialFor,
                               int64_t scratch_bytes = -1) {
  const std::unique_ptr<StreamEncoder> encoder = MakeEncoder(codec, p, isa);
  if (scratch_bytes < 0) {
    scratch_bytes = static_cast<int64_t>(encoder->scratch_bytes());
  }
  Bytes scratch(scratch_bytes, 0xaa);
  Status s =
      encoder->Encode(x.data(), scratch.data(), scratch.size(), parallel);
  CHECK_MSG(s.ok(), s.message);
  Encoded e;
  e.stream.assign(encoder->total_bytes(), 0x55);
  s = encoder->Write(e.stream.data(), parallel);
  CHECK_MSG(s.ok(), s.message);
  e.nonzero = encoder->nonzero();
  return e;
}

inline Bytes EncodeWith(CodecId codec, const Bytes& x, const EncodeParams& p,
                        Isa isa = Isa::kBest,
                        const ParallelFor& parallel = SerialFor) {
  return EncodeWithStats(codec, x, p, isa, parallel).stream;
}

// The output is poisoned before decoding.
inline Bytes DecodeWith(const Bytes& stream, const EncodeParams& p,
                        Isa isa = Isa::kBest,
                        const ParallelFor& parallel = SerialFor) {
  Bytes y(p.n * ItemBytes(p.dtype), 0xcd);
  const Status s = DecodeStream({stream.data(), stream.size(), p.dtype, p.n},
                                y.data(), parallel, isa);
  CHECK_MSG(s.ok(), s.message);
  return y;
}

inline bool IsZeroValue(float v) { return (FloatBits(v) & 0x7f800000) == 0; }

// Half an ulp of a value of dtype next to v.
inline double HalfUlp(float v, DType dtype) {
  if (dtype == DType::kF32) return 0;
  const int digits = dtype == DType::kBF16 ? 8 : 11;
  const int smallest = dtype == DType::kBF16 ? -126 : -14;
  int exponent = 0;
  std::frexp(v, &exponent);  // |v| in [2^(exponent-1), 2^exponent)
  return std::ldexp(0.5, std::max(exponent - 1, smallest) - (digits - 1));
}

template <DType kDType>
int64_t ViolationsIn(const uint8_t* x, const uint8_t* y,
                     const EncodeParams& p) {
  const bool signs_kept = kDType == DType::kF32 && p.mid_rise && !p.dither;
  const bool zeros_kept = kDType == DType::kF32 && (p.mid_rise || p.dither);
  int64_t bad = 0;
  for (int64_t i = 0; i < p.n; ++i) {
    const float a = LoadFloat(x, kDType, i), b = LoadFloat(y, kDType, i);
    const bool same = FloatBits(a) == FloatBits(b);
    const double error = std::fabs(static_cast<double>(a) - b);
    const int8_t* const exponents = p.scales.exponents;
    const double eb =
        std::ldexp(p.eb, exponents ? exponents[i % p.channels] : 0);
    const bool near = error <= eb + HalfUlp(b, kDType);
    const bool lost_zero = a == 0 && b != 0;
    const bool new_zero = zeros_kept && b == 0 && !IsZeroValue(a);
    const bool flipped =
        signs_kept && !IsZeroValue(a) && std::signbit(a) != std::signbit(b);
    bad += !(same || near) || lost_zero || new_zero || flipped;
  }
  return bad;
}

// Scales of up to kScaledChannels channels, for as long as the program runs.
constexpr int kScaledChannels = 64;
inline ChannelScales SomeScales() {
  struct Scales {
    int8_t exponents[kScaledChannels];
    int16_t centres[kScaledChannels];

    Scales() {
      for (int c = 0; c < kScaledChannels; ++c) {
        exponents[c] = static_cast<int8_t>(c % 7 - 6);
        centres[c] = static_cast<int16_t>(c % 5 == 0 ? 20 * c : 0);
      }
    }
  };
  static const Scales scales;
  return {scales.exponents, scales.centres};
}

// The number of values of y that break the promise for x. NaN and infinities
// come back as they were; in f32 mid-rise and dither keep which values are
// zero, mid-rise also their signs.
inline int64_t Violations(const Bytes& x, const Bytes& y,
                          const EncodeParams& p) {
  const auto count = p.dtype == DType::kF32    ? ViolationsIn<DType::kF32>
                     : p.dtype == DType::kBF16 ? ViolationsIn<DType::kBF16>
                                               : ViolationsIn<DType::kF16>;
  return count(x.data(), y.data(), p);
}

}  // namespace comptrain
