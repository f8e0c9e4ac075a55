// The arithmetic of channels' scales: one channel at a time, for a thread of a
// CPU or of a GPU. Sums are taken in one order, so that both find the same.
#pragma once

#include <cmath>
#include <cstdint>

#include "cc/codec/common/half.h"
#include "cc/codec/common/host_device.h"
#include "cc/codec/stream/quantize.h"

namespace comptrain {

// Rows of a tensor that its channels are judged by: one in 32, from 32 to 128,
// and at least 4,096 values in all.
struct SampledRows {
  int64_t count = 0, stride = 1;

  COMPTRAIN_HD SampledRows(int64_t rows, int64_t channels) {
    const int64_t of_values = (4095 + channels) / channels;
    count = rows / 32 < 32 ? 32 : rows / 32 > 128 ? 128 : rows / 32;
    if (count < of_values) count = of_values;
    if (count > rows) count = rows;
    stride = count > 0 ? rows / count : 1;
  }
  // One of each `stride`: what repeats with the width of an image or with the
  // length of a sequence is met at all of its phases.
  COMPTRAIN_HD int64_t Row(int64_t i) const {
    const uint32_t mixed = static_cast<uint32_t>(i) * 0x9e3779b1u >> 8;
    return i * stride + mixed % stride;
  }
};

// Tensors of fewer rows have one scale: so few values say little of a channel,
// and its scale would take as many bytes as they do.
constexpr int64_t kLeastRows = 4;
COMPTRAIN_HD static inline bool HasOwnScales(int64_t n, int64_t channels) {
  return channels > 1 && n / channels >= kLeastRows;
}

// In whose order the channels are added up: strided sums, then halves of these.
constexpr int kPartialSums = 256;

// Of a channel's values in the sample.
struct ChannelMoments {
  double mean, variance;  // zeros included
  double nonzero;         // share of the values

  // The mean square of a value that is not zero about what zeros leave of the
  // mean: what an error of the values is to be compared with, for zeros are
  // exact. Negative where all are zero: nothing is known of the channel.
  COMPTRAIN_HD double MeanSquare() const {
    return nonzero > 0 ? variance / nonzero : -1;
  }
  // False where float32 did not hold the sums.
  COMPTRAIN_HD bool IsFinite() const {
    return mean - mean == 0 && variance - variance == 0;
  }
};

COMPTRAIN_HD static inline float FiniteOrZero(float v) {
  return (FloatBits(v) & 0x7f800000) != 0x7f800000 ? v : 0.0f;
}

// Sums of differences from a channel's first value, since squares of large ones
// would cancel. Values that are not finite count as zeros.
template <class Sum>
COMPTRAIN_HD static inline void AddToSums(float v, float first, Sum* sum,
                                          Sum* sum_sq, int32_t* nonzero) {
  const float finite = FiniteOrZero(v);
  const Sum d = static_cast<Sum>(finite) - static_cast<Sum>(first);
  *sum += d;
  *sum_sq += d * d;
  *nonzero += !CountsAsZero(finite);
}
template <class Sum>
COMPTRAIN_HD static inline ChannelMoments MomentsOf(Sum sum, Sum sum_sq,
                                                    int32_t nonzero,
                                                    float first,
                                                    int64_t count) {
  const double n = static_cast<double>(count);
  const double off = static_cast<double>(sum) / n;
  const double variance = static_cast<double>(sum_sq) / n - off * off;
  return {static_cast<double>(first) + off,
          variance < 0 ? 0 : variance,  // which leaves a NaN
          nonzero / n};
}

// The nearest power of 4, as the logarithm of its root; ratio > 0.
COMPTRAIN_HD static inline int HalfLog2(double ratio) {
  int exponent;
  std::frexp(ratio, &exponent);  // ratio < 2^exponent
  return exponent >= 0 ? exponent / 2 : -((1 - exponent) / 2);
}

// How far below the others' a channel's scale may be, as a power of two; and
// below its own mean, which a number of 24 bits resolves.
constexpr int kLeastOfOthers = -20, kLeastOfMean = -12;
// Means this many sigma away from zero are taken off: nearer ones hardly cost a
// bit.
constexpr double kFarMean = 0.5;

// A channel's exponent. mean_square: ChannelSample's. stream: its quantizer.
COMPTRAIN_HD static inline int ExponentOf(const ChannelMoments& m,
                                          double mean_square,
                                          const Quantizer& stream) {
  double own = m.MeanSquare();
  if (!(own >= 0) || !(mean_square > 0) || !(mean_square < HUGE_VAL)) return 0;
  const double of_mean = m.mean * m.mean * std::ldexp(1.0, 2 * kLeastOfMean);
  if (own < of_mean) own = of_mean;
  const double least = mean_square * std::ldexp(1.0, 2 * kLeastOfOthers);
  if (own < least) own = least;
  int exponent = HalfLog2(own / mean_square);
  // Where steps and their inverses stay normal numbers.
  const int of_step = static_cast<int>(FloatBits(stream.step) >> 23) - 127;
  if (exponent < -100 - of_step) exponent = -100 - of_step;
  return exponent < kLeastExponent     ? kLeastExponent
         : exponent > kLargestExponent ? kLargestExponent
                                       : exponent;
}

// A channel's centre; 0 where zeros are many, or where it has no code.
COMPTRAIN_HD static inline int CentreOf(const ChannelMoments& m, int exponent,
                                        const Quantizer& stream) {
  if (stream.coding != Coding::kDither || m.nonzero < 1 ||
      !(m.mean * m.mean > kFarMean * kFarMean * m.variance)) {
    return 0;
  }
  const double code =
      m.mean * static_cast<double>(OfChannel(stream, exponent, 0).inv);
  return std::fabs(code) < 32767 ? static_cast<int>(std::floor(code + 0.5)) : 0;
}

}  // namespace comptrain
