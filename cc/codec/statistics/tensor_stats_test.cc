#include "cc/codec/statistics/tensor_stats.h"

#include <cmath>
#include <random>
#include <vector>

#include "cc/codec/testing/codecs.h"

namespace comptrain {
namespace {

void TestSigma() {
  std::vector<float> v(1 << 20);
  std::mt19937 random(7);
  std::normal_distribution<float> normal(1, 3);
  for (float& f : v) f = normal(random);
  v[3] = NAN;
  for (DType dtype : kAllDTypes) {
    const Bytes x = ToTensor(v, dtype);
    for (int64_t n : {1 << 20, 1 << 15}) {
      CHECK(std::fabs(SampleSigma(x.data(), dtype, n) - 3) < 0.1);
    }
  }
  CHECK_EQ(SampleSigma(v.data(), DType::kF32, 0), 0.0);
  CHECK_EQ(SampleSigma(v.data(), DType::kF32, 1), 0.0);
}

}  // namespace
}  // namespace comptrain

int main() {
  comptrain::TestSigma();
  return comptrain::FinishTests();
}
