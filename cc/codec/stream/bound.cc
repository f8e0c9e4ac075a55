#include "cc/codec/stream/bound.h"

#include <cmath>

namespace comptrain {

void BoundRule::NextState(const float* state, const EncodedTensor& tensor,
                          float* next) const {
  const double running = state[kRunningSigma];
  std::copy(state, state + kStateFields, next);
  next[kBoundUsed] = tensor.eb;
  next[kRunningSigma] =
      static_cast<float>(RunningValue(running, tensor.sigma, decay));
  next[kNonzeroRatio] = static_cast<float>(tensor.nonzero_ratio);
  next[kSigma] = static_cast<float>(tensor.sigma);
  next[kStreamBytes] = static_cast<float>(tensor.stream_bytes);
  next[kRange] = static_cast<float>(tensor.range);
  next[kWidened] = 0;
  next[kRmsBound] = static_cast<float>(tensor.eb * tensor.rms_bound_over_eb);
  next[kSteps] = std::fmod(state[kSteps] + 1, kStepsCycle);
}

}  // namespace comptrain
