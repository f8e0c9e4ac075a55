#include "cc/codec/stream/bound.h"

#include "cc/codec/common/sigma.h"

namespace comptrain {

void BoundRule::NextState(const float* state, const EncodeParams& params,
                          const EncodeStats& stats, double range,
                          int64_t stream_bytes, float* next) const {
  const double sigma = SigmaOf(params.n, stats.sum, stats.sum_sq);
  const double running = state[kRunningSigma];
  std::copy(state, state + kStateFields, next);
  next[kBoundUsed] = params.eb;
  next[kRunningSigma] = static_cast<float>(RunningValue(running, sigma, decay));
  next[kNonzeroRatio] =
      params.n == 0 ? 0
                    : static_cast<float>(static_cast<double>(stats.nonzero) /
                                         static_cast<double>(params.n));
  next[kSigma] = static_cast<float>(sigma);
  next[kStreamBytes] = static_cast<float>(stream_bytes);
  next[kRange] = static_cast<float>(range);
  next[kWidened] = 0;
  next[kRmsBound] = params.eb;
  const float steps = state[kSteps] + 1;
  next[kSteps] = steps < kStepsWrap ? steps : 0;
}

}  // namespace comptrain
