// The error bound of a tensor: absolute, or relative to how its values spread
// in the steps before. One arithmetic for the executor's kernels and for
// compiled steps, whose values are operations.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/codec/stream/params.h"

namespace comptrain {

// The state of a tensor that is compressed step after step, floats;
// tf_comptrain/codecs/bound.py names the same fields.
enum StateField {
  kBoundSet,  // absolute, by the caller; 0: relative
  kBoundUsed,
  kRunningSigma,
  kNonzeroRatio,
  kSigma,
  kStreamBytes,
  kRange,
  kWidened,   // share of groups of values with a bound above kBoundUsed
  kRmsBound,  // root of the mean square of the bounds of all groups
  kSteps,     // tensors encoded, from 0 again at kStepsWrap
  kStateFields
};

// Whole numbers below it are floats.
constexpr float kStepsWrap = 0x1p24f;

// Of a tensor no more goes into a running value than this times that value: one
// outlier of 1e30 would widen a bound for hundreds of steps. A scale that did
// grow is followed at 1.9 times a step, at a decay of 0.9.
constexpr float kLargestJump = 10;

// What a bound that is relative is limited to. A constant tensor has no scale
// to be relative to, and a diverging one may have any: beyond these the
// arithmetic of a stream would leave the normal numbers.
// tf_comptrain/codecs/bound.py has the same.
constexpr float kSmallestBound = 1e-30f, kLargestBound = 0x1p120f;

// Just below twice: rounding stays within the bound.
constexpr float kStepOverBound = 2 * (1 - 0x1p-13f);

// V: double, or what has these functions the operators below with numbers.
inline bool IsPositive(double v) { return v > 0; }
inline double Where(bool condition, double then, double otherwise) {
  return condition ? then : otherwise;
}
inline double AtMost(double v, double most) { return std::min(v, most); }
inline double AtLeast(double v, double least) { return std::max(v, least); }

// `now` with outliers cut off, where there is a running value to judge by.
template <class V>
V WithoutOutlier(const V& running, const V& now) {
  return Where(IsPositive(running), AtMost(now, running * kLargestJump), now);
}

template <class V>
V RunningValue(const V& running, const V& now, float decay) {
  return Where(IsPositive(running),
               running * decay + WithoutOutlier(running, now) * (1 - decay),
               now);
}

template <class V>
V RelativeBound(const V& scale, float relative) {
  return AtMost(AtLeast(scale * relative, kSmallestBound), kLargestBound);
}

// How a bound is found on the executor.
struct BoundRule {
  float relative_bound = 0, decay = 0;
  bool of_range = false;  // relative to the range of the tensor, not to sigma
  bool lossless = false;

  // Whether the bound is relative to the sigma of the tensor itself: at the
  // first step.
  bool NeedsSigma(const float* state) const {
    return !lossless && !of_range && state[kBoundSet] == 0 &&
           !(state[kRunningSigma] > 0);
  }

  // The bound, or 0 without loss. range: of the tensor, read where of_range.
  // sigma(): of the tensor, where NeedsSigma.
  template <class Sigma>
  float Bound(const float* state, double range, const Sigma& sigma) const {
    if (lossless) return 0;
    if (state[kBoundSet] != 0) return state[kBoundSet];
    const double scale = of_range            ? range
                         : NeedsSigma(state) ? sigma()
                                             : state[kRunningSigma];
    return static_cast<float>(RelativeBound(scale, relative_bound));
  }

  // next: the state after a tensor that was encoded with params.eb.
  void NextState(const float* state, const EncodeParams& params,
                 const EncodeStats& stats, double range, int64_t stream_bytes,
                 float* next) const;
};

}  // namespace comptrain
