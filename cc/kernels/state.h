// Layout of the state vector of Comptrain>Compress; tf_comptrain/codecs.py names
// the same fields.
#ifndef TF_COMPTRAIN_CC_KERNELS_STATE_H_
#define TF_COMPTRAIN_CC_KERNELS_STATE_H_

#include "cc/kernels/util.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {

enum StateField {
  kBoundSet,
  kBoundUsed,
  kRunningSigma,
  kNonzeroRatio,
  kSigma,
  kStreamBytes,
  kRange,
  kSaturated,     // XLA only: the executor's streams have no fixed rate
  kRunningRange,  // XLA only
  kStateFields
};

// Of a tensor no more goes into a running value than this times that value: one
// outlier of 1e30 would widen a bound for hundreds of steps. A scale that did
// grow is followed at 1.9 times a step, at a decay of 0.9.
constexpr float kLargestJump = 10;

// What a bound that is relative is limited to. A constant tensor has no scale to be
// relative to, and a diverging one may have any: beyond these the arithmetic of a
// stream would leave the normal numbers. tf_comptrain/codecs.py has the same.
constexpr float kSmallestBound = 1e-30f, kLargestBound = 0x1p120f;

inline absl::Status CheckState(const tensorflow::TensorShape& shape) {
  return CheckShape("state", shape, tensorflow::TensorShape({kStateFields}),
                    "zeros or the new_state of an earlier call");
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_KERNELS_STATE_H_
