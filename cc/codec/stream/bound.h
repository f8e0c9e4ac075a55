// The error bound of a tensor: absolute, or relative to how its values spread
// in the steps before.
#pragma once

#include <cstdint>

#include "cc/codec/common/host_device.h"
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
  kRmsBound,  // root of the mean square of the bounds of all channels or groups
  kSteps,     // tensors so far, modulo kStepsCycle
  kStateFields
};

// Of a tensor no more goes into a running value than this times that value: one
// outlier of 1e30 would widen a bound for hundreds of steps. A scale that did
// grow is followed at 1.9 times a step, at a decay of 0.9.
constexpr float kLargestJump = 10;

// Steps count in a float: exact below this.
constexpr float kStepsCycle = 0x1p24f;

// Where the numbers of dither begin in a step: far from those of other steps.
COMPTRAIN_HD inline uint32_t SeedOf(const float* state) {
  return static_cast<uint32_t>(state[kSteps]) * 0x9e3779b9u;
}

// What a bound that is relative is limited to. A constant tensor has no scale
// to be relative to, and a diverging one may have any: beyond these the
// arithmetic of a stream would leave the normal numbers.
// tf_comptrain/codecs/bound.py has the same.
constexpr float kSmallestBound = 1e-30f, kLargestBound = 0x1p120f;

// Just below twice: rounding stays within the bound.
constexpr float kStepOverBound = 2 * (1 - 0x1p-13f);

// `now` with outliers cut off, where there is a running value to judge by.
COMPTRAIN_HD inline double WithoutOutlier(double running, double now) {
  const double most = running * kLargestJump;
  return running > 0 && most < now ? most : now;
}

COMPTRAIN_HD inline double RunningValue(double running, double now,
                                        float decay) {
  return running > 0
             ? running * decay + WithoutOutlier(running, now) * (1 - decay)
             : now;
}

COMPTRAIN_HD inline double RelativeBound(double scale, float relative) {
  const double bound = scale * relative;
  return bound < kSmallestBound  ? kSmallestBound
         : bound > kLargestBound ? kLargestBound
                                 : bound;
}

// What an op has found of a tensor that it has encoded.
struct EncodedTensor {
  float eb = 0;
  double sigma = 0;  // see ChannelSample
  double range = 0;
  double nonzero_ratio = 0;
  double rms_bound_over_eb = 1;
  int64_t stream_bytes = 0;
};

// How a bound is found on the executor.
struct BoundRule {
  float relative_bound = 0, decay = 0;
  bool of_range = false;    // relative to the range of the tensor, not to sigma
  bool by_channel = false;  // each channel has the bound at its own scale
  bool lossless = false;

  // Whether the bound is relative to the sigma of the tensor itself: at the
  // first step.
  bool NeedsSigma(const float* state) const {
    return !lossless && !of_range && state[kBoundSet] == 0 &&
           !(state[kRunningSigma] > 0);
  }

  // The bound, or 0 without loss. range, sigma: of the tensor, read where
  // of_range, and where NeedsSigma.
  float Bound(const float* state, double range, double sigma) const {
    if (lossless) return 0;
    if (state[kBoundSet] != 0) return state[kBoundSet];
    const double scale = of_range            ? range
                         : NeedsSigma(state) ? sigma
                                             : state[kRunningSigma];
    return static_cast<float>(RelativeBound(scale, relative_bound));
  }

  // next: the state after a tensor that was encoded.
  void NextState(const float* state, const EncodedTensor& tensor,
                 float* next) const;
};

}  // namespace comptrain
