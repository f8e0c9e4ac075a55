// Bounds relative to running values, and the state from step to step.
#include "cc/codec/stream/bound.h"

#include <cmath>

#include "cc/codec/testing/harness.h"

namespace comptrain {
namespace {

struct State {
  float fields[kStateFields] = {};

  float& operator[](StateField f) { return fields[f]; }
  State After(const BoundRule& rule, float eb, double sigma,
              double range = 0) const {
    EncodedTensor tensor;
    tensor.eb = eb;
    tensor.sigma = sigma;
    tensor.range = range;
    tensor.nonzero_ratio = 0.5;
    tensor.rms_bound_over_eb = 1.5;
    tensor.stream_bytes = 77;
    State next;
    rule.NextState(fields, tensor, next.fields);
    return next;
  }
  // of_tensor: the sigma of the tensor itself.
  float Bound(const BoundRule& rule, double of_tensor, double range = 0) const {
    return rule.Bound(fields, range, of_tensor);
  }
};

void TestBound() {
  BoundRule rule;
  rule.relative_bound = 0.1f;
  rule.decay = 0.9f;
  State state;
  CHECK(rule.NeedsSigma(state.fields));
  CHECK_EQ(state.Bound(rule, 2), static_cast<float>(2 * 0.1f));
  state[kRunningSigma] = 4;
  CHECK(!rule.NeedsSigma(state.fields));
  CHECK_EQ(state.Bound(rule, 2), 4 * 0.1f);
  state[kBoundSet] = 0.25f;
  CHECK_EQ(state.Bound(rule, 2), 0.25f);
  CHECK(!rule.NeedsSigma(state.fields));

  State constant;
  CHECK_EQ(constant.Bound(rule, 0), kSmallestBound);
  CHECK_EQ(constant.Bound(rule, 1e300), kLargestBound);

  rule.of_range = true;
  CHECK(!rule.NeedsSigma(constant.fields));
  CHECK_EQ(constant.Bound(rule, 2, 8), 8 * 0.1f);
  rule.lossless = true;
  CHECK_EQ(constant.Bound(rule, 2, 8), 0.0f);
}

void TestNextState() {
  BoundRule rule;
  rule.relative_bound = 0.1f;
  rule.decay = 0.75f;
  State state;
  state[kBoundSet] = 0.5f;
  state[kWidened] = 0.125f;
  State next = state.After(rule, 0.5f, 2, 9);
  CHECK_EQ(next[kBoundSet], 0.5f);
  CHECK_EQ(next[kBoundUsed], 0.5f);
  CHECK_EQ(next[kRunningSigma], 2.0f);  // the first one, as it is
  CHECK_EQ(next[kSigma], 2.0f);
  CHECK_EQ(next[kNonzeroRatio], 0.5f);
  CHECK_EQ(next[kStreamBytes], 77.0f);
  CHECK_EQ(next[kRange], 9.0f);
  CHECK_EQ(next[kWidened], 0.0f);
  CHECK_EQ(next[kRmsBound], 0.75f);
  CHECK_EQ(next[kSteps], 1.0f);
  next[kSteps] = kStepsCycle - 1;
  CHECK_EQ(next.After(rule, 0.5f, 2)[kSteps], 0.0f);

  CHECK_EQ(next.After(rule, 0.5f, 4)[kRunningSigma], 0.75f * 2 + 0.25f * 4);
  // An outlier counts as kLargestJump times the running value.
  State outlier = next.After(rule, 0.5f, 1e30);
  CHECK_EQ(outlier[kRunningSigma], 0.75f * 2 + 0.25f * 20);
  CHECK_EQ(outlier[kSigma], 1e30f);
}

}  // namespace
}  // namespace comptrain

int main() {
  comptrain::TestBound();
  comptrain::TestNextState();
  return comptrain::FinishTests();
}
