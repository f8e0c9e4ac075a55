// What a sample says of a tensor's channels, and the scales they get by it.
#include "cc/codec/stream/scales.h"

#include <cmath>
#include <random>

#include "cc/codec/stream/bound.h"
#include "cc/codec/testing/codecs.h"
#include "cc/codec/testing/threads.h"

namespace comptrain {
namespace {

// Channel c: normal values of sigma[c] about mean[c]; `density` of them not 0.
std::vector<float> Tensor(int64_t rows, const std::vector<float>& sigma,
                          const std::vector<float>& mean,
                          const std::vector<double>& density) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<double> uniform;
  std::vector<float> x;
  for (int64_t i = 0; i < rows; ++i) {
    for (size_t c = 0; c < sigma.size(); ++c) {
      const float v = mean[c] + sigma[c] * normal(random);
      x.push_back(uniform(random) < density[c] ? v : 0.0f);
    }
  }
  return x;
}

EncodeParams ParamsFor(int64_t rows, int64_t channels, Coding coding,
                       float eb) {
  return ParamsOf(DType::kF32, rows * channels, channels, eb, coding);
}

void TestSample() {
  const std::vector<float> x =
      Tensor(20000, {1, 4, 1, 0}, {0, 0, 50, 0}, {1, 1, 1, 1});
  for (DType dtype : kAllDTypes) {
    const Bytes bytes = ToTensor(x, dtype);
    const ChannelSample s =
        SampleChannels(bytes.data(), dtype, 80000, 4, SerialFor);
    CHECK_EQ(s.channels.size(), size_t{4});
    const double want[] = {1, 16, 1, 0};
    for (int c = 0; c < 4; ++c) {
      CHECK(std::fabs(s.channels[c].variance - want[c]) <= 0.2 * want[c]);
    }
    CHECK(std::fabs(s.channels[2].mean - 50) < 0.3);
    CHECK_EQ(s.channels[3].nonzero, 0.0);
    // The means of the channels are no part of it.
    CHECK(std::fabs(s.sigma - std::sqrt(18.0 / 4)) < 0.3);
    for (const ParallelFor& parallel : ParallelVariants()) {
      const ChannelSample again =
          SampleChannels(bytes.data(), dtype, 80000, 4, parallel);
      CHECK_EQ(again.sigma, s.sigma);
      CHECK_EQ(again.channels[1].mean, s.channels[1].mean);
    }
  }
}

// Of all values, where a channel has too few.
void TestFewRows() {
  std::vector<float> x(3 * 512);
  std::mt19937 random(5);
  std::normal_distribution<float> normal(2, 3);
  for (float& v : x) v = normal(random);
  const ChannelSample s =
      SampleChannels(x.data(), DType::kF32, 3 * 512, 512, SerialFor);
  CHECK(s.channels.empty());
  CHECK(std::fabs(s.sigma - 3) < 0.2);
  const ChannelSample one =
      SampleChannels(x.data(), DType::kF32, 1, 1, SerialFor);
  CHECK_EQ(one.sigma, 0.0);
  CHECK_EQ(SampleChannels(nullptr, DType::kF32, 0, 1, SerialFor).sigma, 0.0);
}

void TestNotFinite() {
  std::vector<float> x = Tensor(4000, {1, 1, 1}, {0, 0, 0}, {1, 1, 1});
  for (int64_t i = 0; i < 4000; i += 7) {
    x[3 * i] = NAN;
    x[3 * i + 1] = i % 2 ? HUGE_VALF : -HUGE_VALF;
  }
  for (int64_t i = 0; i < 4000; ++i) x[3 * i + 2] *= 1e30f;
  const ChannelSample s =
      SampleChannels(x.data(), DType::kF32, 12000, 3, SerialFor);
  for (int c = 0; c < 2; ++c) {
    CHECK(s.channels[c].IsFinite());
    CHECK(s.channels[c].variance > 0.5 && s.channels[c].variance < 1.5);
  }
  // Squares beyond float32.
  CHECK(std::fabs(std::sqrt(s.channels[2].variance) / 1e30 - 1) < 0.2);
}

void TestScalesOfChannels() {
  std::vector<float> sigma(96, 1), mean(96, 0);
  std::vector<double> density(96, 1);
  sigma[0] = 1024;     // an outlier
  mean[1] = 30;        // far from zero
  density[2] = 0.125;  // sparse, of the others' scale
  sigma[3] = 1.0f / 16;
  sigma[4] = 0;  // nothing but zeros
  sigma[5] = 0;  // a constant
  mean[5] = 30;
  const std::vector<float> x = Tensor(4096, sigma, mean, density);
  const ChannelSample sample =
      SampleChannels(x.data(), DType::kF32, 4096 * 96, 96, SerialFor);
  const float eb = static_cast<float>(0.2 * sample.sigma);
  const OwnScales own(sample, ParamsFor(4096, 96, Coding::kDither, eb));
  const ChannelScales s = own.scales();
  if (!CHECK(s.exponents != nullptr && s.centres != nullptr)) return;
  const auto bound_over_sigma = [&](int c) {
    return std::ldexp(eb, s.exponents[c]) / sigma[c];
  };
  CHECK_EQ(static_cast<int>(s.exponents[0]), 0);  // no wider than the tensor's
  for (int c : {1, 2, 3, 50}) {
    CHECK_MSG(bound_over_sigma(c) > 0.12 && bound_over_sigma(c) < 0.33,
              std::to_string(c) + ": " + std::to_string(bound_over_sigma(c)));
  }
  CHECK_EQ(static_cast<int>(s.exponents[4]), 0);
  const float step = kStepOverBound * eb;
  for (int c : {1, 5}) {
    CHECK(std::fabs(s.centres[c] * std::ldexp(step, s.exponents[c]) - 30) < 1);
  }
  for (int c : {0, 2, 3, 4, 50}) CHECK_EQ(static_cast<int>(s.centres[c]), 0);
  // Only dither leaves code 0 to zeros.
  for (Coding coding : {Coding::kPlain, Coding::kMidRise}) {
    const OwnScales plain(sample, ParamsFor(4096, 96, coding, eb));
    CHECK(plain.scales().centres == nullptr);
  }
  // A bound over 1e36 leaves no room for larger steps.
  const OwnScales widest(sample, ParamsFor(4096, 96, Coding::kDither, 1e36f));
  for (int c = 0; c < 96; ++c) {
    CHECK(
        widest.scales().exponents == nullptr ||
        ExponentIsRight(kStepOverBound * 1e36f, widest.scales().exponents[c]));
  }
}

void TestAlike() {
  const std::vector<float> x =
      Tensor(4096, std::vector<float>(64, 2), std::vector<float>(64, 0),
             std::vector<double>(64, 0.5));
  const ChannelSample sample =
      SampleChannels(x.data(), DType::kF32, 4096 * 64, 64, SerialFor);
  const OwnScales own(sample, ParamsFor(4096, 64, Coding::kDither, 0.2f));
  CHECK(own.scales().exponents == nullptr && own.scales().centres == nullptr);
  CHECK_EQ(own.rms_bound_over_eb(), 1.0);
}

}  // namespace
}  // namespace comptrain

int main() {
  comptrain::TestSample();
  comptrain::TestFewRows();
  comptrain::TestNotFinite();
  comptrain::TestScalesOfChannels();
  comptrain::TestAlike();
  return comptrain::FinishTests();
}
