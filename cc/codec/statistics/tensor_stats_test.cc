#include "cc/codec/statistics/tensor_stats.h"

#include <cmath>
#include <random>
#include <vector>

#include "cc/codec/testing/codecs.h"

namespace comptrain {
namespace {

void TestRange() {
  for (DType dtype : kAllDTypes) {
    std::vector<float> v(10000);
    std::mt19937 random(7);
    for (float& f : v) f = static_cast<float>(random() % 100);
    v[3] = NAN;
    v[4] = -HUGE_VALF;
    v[5000] = -28;
    v[7000] = 128;
    CHECK_EQ(ValueRange(ToTensor(v, dtype).data(), dtype, 10000, SerialFor),
             156.0);
  }
  CHECK_EQ(ValueRange(nullptr, DType::kF32, 0, SerialFor), 0.0);
}

}  // namespace
}  // namespace comptrain

int main() {
  comptrain::TestRange();
  return comptrain::FinishTests();
}
