// Layout of the state vector of Comptrain>Compress; tf_comptrain/codecs.py names
// the same fields.
#ifndef TF_COMPTRAIN_CC_KERNELS_STATE_H_
#define TF_COMPTRAIN_CC_KERNELS_STATE_H_

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

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_KERNELS_STATE_H_
