// The error bound of plane and rans on random values from ten distributions,
// bounds from 1e-6 to 1e3, every type and way of coding. COMPTRAIN_VALUES sets
// how many values (4 million); COMPTRAIN_LONG=1: 10^9.
#include <cstdlib>

#include "cc/codec/testing/codecs.h"

namespace comptrain {
namespace {

constexpr int kDistributions = 10;
const char* const kNames[kDistributions] = {
    "any bits", "normal",  "ReLU",   "uniform",           "log-normal",
    "Cauchy",   "Laplace", "smooth", "half steps +- ulp", "sparse or tiny"};

float Draw(int distribution, float eb, int64_t i, std::mt19937* random) {
  const auto uniform = [random] {
    return (static_cast<float>((*random)() >> 8) + 0.5f) * 0x1p-24f;
  };
  // A sum of four: near enough to normal, and ten times as fast.
  const auto normal = [&uniform] {
    return 1.732f * (uniform() + uniform() + uniform() + uniform() - 2);
  };
  switch (distribution) {
    case 0:
      return BitsFloat(static_cast<uint32_t>((*random)()));
    case 1:
      return normal();
    case 2:
      return std::max(0.0f, normal());
    case 3:
      return 200 * uniform() - 100;
    case 4:
      return std::exp(3 * normal());
    case 5:
      return normal() / (uniform() + 1e-6f);
    case 6:
      return std::log(uniform()) * ((*random)() & 1 ? 1.0f : -1.0f);
    case 7:
      return 3 + std::sin(1e-3f * static_cast<float>(i)) + 0.01f * normal();
    case 8: {
      const int steps = static_cast<int>((*random)() % 2048) - 1024;
      const float at = eb * static_cast<float>(steps);
      const uint32_t near = FloatBits(at) + (*random)() % 3 - 1;
      return steps == 0 ? at : BitsFloat(near);
    }
    default:
      return uniform() < 0.9f ? 0.0f : 1e-38f * normal() / (uniform() + 1e-9f);
  }
}

void TestPromise() {
  const char* wanted = std::getenv("COMPTRAIN_LONG");
  const char* count = std::getenv("COMPTRAIN_VALUES");
  const int64_t total = count != nullptr ? std::atoll(count)
                        : wanted != nullptr && wanted[0] == '1'
                            ? int64_t{1000000000}
                            : 4000000;
  std::mt19937 random(9);
  int64_t done[kDistributions] = {}, values = 0, zeros = 0;
  for (int64_t round = 0; values < total; ++round) {
    const int distribution = static_cast<int>(round % kDistributions);
    const CodecId codec =
        round / kDistributions % 2 ? CodecId::kPlane : CodecId::kRans;
    const float eb =
        std::pow(10.0f, 9 * (static_cast<float>(random() % 100001) / 1e5f) - 6);
    const int64_t channels = random() % 2 ? 64 : 50;
    const EncodeParams p = ParamsOf(kAllDTypes[random() % 3], 1600 * channels,
                                    channels, eb, kCodings[random() % 3]);
    std::vector<float> v(p.n);
    for (int64_t i = 0; i < p.n; ++i) {
      v[i] = Draw(distribution, eb, i, &random);
      zeros += v[i] == 0;
    }
    const Bytes x = ToTensor(v, p.dtype);
    const Bytes y = DecodeWith(EncodeWith(codec, x, p), p);
    CHECK_MSG(Violations(x, y, p) == 0,
              std::string(kNames[distribution]) + ", codec " +
                  std::to_string(static_cast<int>(codec)) + ", bound " +
                  std::to_string(eb) + ", dtype " +
                  std::to_string(static_cast<int>(p.dtype)));
    done[distribution] += p.n;
    values += p.n;
  }
  for (int d = 0; d < kDistributions; ++d) {
    std::printf("%-18s %lld values\n", kNames[d],
                static_cast<long long>(done[d]));
  }
  std::printf("%lld values, %lld of them zeros\n",
              static_cast<long long>(values), static_cast<long long>(zeros));
}

}  // namespace
}  // namespace comptrain

int main() {
  comptrain::TestPromise();
  return comptrain::FinishTests();
}
