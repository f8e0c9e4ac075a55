// What an encoder of a fixed rate knows of a tensor before it writes: its
// bound, and the state of the next step. One arithmetic for CPUs and GPUs.
#pragma once

#include <cmath>
#include <cstdint>

#include "cc/codec/common/host_device.h"
#include "cc/codec/fixed_rate/layout.h"
#include "cc/codec/fixed_rate/sample.h"
#include "cc/codec/fixed_rate/scale.h"
#include "cc/codec/stream/bound.h"

namespace comptrain {

// Sums of a sample of finite values.
struct SampleSums {
  // off: less the first value, since squares of large ones would cancel.
  double off = 0, squares = 0, nonzero = 0, largest = 0, count = 0;

  COMPTRAIN_HD void Add(float v, bool is_zero, double first) {
    const double from_first = v - first, magnitude = std::fabs(v);
    off += from_first;
    squares += from_first * from_first;
    nonzero += is_zero ? 0 : 1;
    if (magnitude > largest) largest = magnitude;
    count += 1;
  }
  COMPTRAIN_HD void Add(const SampleSums& s) {
    off += s.off;
    squares += s.squares;
    nonzero += s.nonzero;
    if (s.largest > largest) largest = s.largest;
    count += s.count;
  }
  COMPTRAIN_HD double sigma() const {
    const double mean = off / count;
    const double variance = squares / count - mean * mean;
    return variance > 0 ? std::sqrt(variance) : 0;
  }
};

// The centre of a channel: the mean of its values, or 0 where they lie about
// it.
COMPTRAIN_HD inline uint16_t CentreOf(double sum, double squares,
                                      double count) {
  const double mean = sum / count;
  const bool is_far = kFarMean * mean * mean > squares / count;
  return FloatToBF16(is_far ? static_cast<float>(mean) : 0.0f);
}

// Absolute where the state sets one, else relative to sigma or to the range. No
// smaller than what scales can widen to the largest value.
COMPTRAIN_HD inline float FixedRateBound(const BoundRule& rule,
                                         const float* state,
                                         const SampleSums& sample,
                                         double range) {
  const double running = state[kRunningSigma], set = state[kBoundSet];
  const double scale = rule.of_range ? range
                       : running > 0 ? running
                                     : sample.sigma();
  double bound = set != 0 ? set : RelativeBound(scale, rule.relative_bound);
  double largest = sample.largest;
  if (running > 0 && running * kLargestOverSigma < largest) {
    largest = running * kLargestOverSigma;
  }
  if (bound < largest * kLeastOverLargest) bound = largest * kLeastOverLargest;
  return static_cast<float>(bound > kLargestBound ? kLargestBound : bound);
}

// What a state depends on beside the values.
struct StateRule {
  BoundRule bound;
  bool mid_rise;
  int64_t stream_bytes;
};

// What codes depend on. next: not state.
COMPTRAIN_HD inline void WriteBound(const StateRule& rule, const float* state,
                                    const SampleSums& sample, double range,
                                    float* next) {
  const float steps = state[kSteps] + 1;
  next[kBoundUsed] = FixedRateBound(rule.bound, state, sample, range);
  next[kSteps] = steps < kStepsCycle ? steps : 0;
}

// All but what groups say, which is left as it was. next: not state.
COMPTRAIN_HD inline void WriteState(const StateRule& rule, const float* state,
                                    const SampleSums& sample, double range,
                                    float* next) {
  const double sigma = sample.sigma();
  WriteBound(rule, state, sample, range, next);
  next[kBoundSet] = state[kBoundSet];
  next[kRunningSigma] = static_cast<float>(
      RunningValue(state[kRunningSigma], sigma, rule.bound.decay));
  // What the law knows as zero has no error: here only what a mask keeps.
  next[kNonzeroRatio] =
      rule.mid_rise ? static_cast<float>(sample.nonzero / sample.count) : 1;
  next[kSigma] = static_cast<float>(sigma);
  next[kStreamBytes] = static_cast<float>(rule.stream_bytes);
  next[kRange] = static_cast<float>(range);
  next[kWidened] = state[kWidened];
  next[kRmsBound] = state[kRmsBound];
}

// Of all groups: what kWidened and kRmsBound are made of.
struct GroupSums {
  double groups = 0, widened = 0, squares = 0;

  COMPTRAIN_HD void Add(uint8_t scale_code, double count) {
    const double scale = ScaleOf(scale_code);
    groups += count;
    widened += scale > kScaleOfBound ? count : 0;
    squares += scale * scale * count;
  }
  COMPTRAIN_HD void Add(const GroupSums& s) {
    groups += s.groups;
    widened += s.widened;
    squares += s.squares;
  }
  // bound: the tensor's.
  COMPTRAIN_HD void Write(float bound, float* state) const {
    state[kWidened] = static_cast<float>(widened / groups);
    state[kRmsBound] =
        static_cast<float>(bound * std::sqrt(squares / groups) / kScaleOfBound);
  }
};

}  // namespace comptrain
