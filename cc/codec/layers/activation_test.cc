#include "cc/codec/layers/activation.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "cc/codec/layers/activation_kernels.h"
#include "cc/codec/testing/data.h"
#include "cc/codec/testing/isas.h"
#include "cc/codec/testing/threads.h"

namespace comptrain {
namespace {

double Phi(double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }
double Density(double x) {
  return std::exp(-0.5 * x * x) / std::sqrt(2 * std::acos(-1.0));
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double TwiceU(double x) {
  return 2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
}
double Factor(Activation kind, double x) {
  if (kind == Activation::kGelu) return Phi(x);
  return Sigmoid(kind == Activation::kSilu ? x : TwiceU(x));
}

// Every float of a fine grid, and what lies outside of it.
std::vector<float> Values() {
  std::vector<float> values = {0.0f, -0.0f, 1e-30f, -1e-30f, 100, -100, 1e30f};
  for (float x = -14; x <= 14; x += 1.0f / 512) values.push_back(x);
  return values;
}

void TestValues() {
  const Activation kind = Activation::kGelu;
  const std::vector<float> x = Values();
  const int64_t n = static_cast<int64_t>(x.size());
  for (const Isa isa : AvailableIsas()) {
    const ActivationKernels* const table = &ActivationKernelsOf(isa);
    std::vector<float> y(n), dx(n), dy(n, 3.0f);
    table->forward[static_cast<int>(kind)][0](x.data(), n, y.data());
    table->gradient[static_cast<int>(kind)][0](x.data(), n, dy.data(),
                                               dx.data());
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double v = x[i], phi = Phi(v);
      // Relative, also in the far tail, as long as floats are normal there.
      const double tolerance = 4e-7 + 4e-7 * std::min(v * v, 170.0) / 4;
      wrong += std::abs(y[i] - v * phi) >
               tolerance * std::abs(v * phi) + 1e-35 * std::abs(v);
      const double slope = 3 * (phi + v * Density(v));
      wrong += std::abs(dx[i] - slope) > 1e-6 * (1 + std::abs(slope));
    }
    CHECK_EQ(wrong, 0);
  }
}

// dy is 3.
double Slope(Activation kind, double x) {
  const double s = Factor(kind, x);
  const double cubic = 6 * 0.044715 * std::sqrt(2 / std::acos(-1.0));
  const double inner = kind == Activation::kSilu
                           ? 1
                           : 2 * std::sqrt(2 / std::acos(-1.0)) + cubic * x * x;
  return 3 * (s + x * s * (1 - s) * inner);
}

void TestSigmoids(Activation kind) {
  const std::vector<float> x = Values();
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<float> dy(n, 3.0f), y(n), dx(n);
  Activate(kind, x.data(), DType::kF32, n, y.data(), SerialFor);
  ActivationGradient(kind, {x.data(), DType::kF32, n}, dy.data(), dx.data(),
                     SerialFor);
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double v = x[i], s = Factor(kind, v);
    // Far out the tail is as much off as its exponent, which grows with v^3.
    const double exponent = kind == Activation::kSilu ? 1 : 1 + 0.5 * v * v;
    wrong += std::abs(y[i] - v * s) > 4e-7 * exponent * std::abs(v * s) + 1e-35;
    const double slope = std::abs(v) < 1e4 ? Slope(kind, v) : v > 0 ? 3 : 0;
    wrong += std::abs(dx[i] - slope) > 1e-6 * (1 + std::abs(slope));
  }
  CHECK_EQ(wrong, 0);
}

void TestNotNumbers(Activation kind) {
  const float x[] = {NAN, INFINITY, 1};
  float y[3];
  Activate(kind, x, DType::kF32, 3, y, SerialFor);
  CHECK(std::isnan(y[0]));
  CHECK(y[1] == INFINITY);
  ActivationGradient(kind, {x, DType::kF32, 3}, x, y, SerialFor);
  CHECK(std::isnan(y[0]));
}

// All tables, threads and types alike, in place or not.
void TestAlike(Activation kind, DType dtype, int64_t n) {
  const int64_t bytes = n * ItemBytes(dtype);
  Buffer x(bytes, static_cast<int>(ItemBytes(dtype))), dy(bytes), y(bytes),
      dx(bytes);
  FillRandom(static_cast<uint32_t>(n), dtype, n, 0, x.data());
  FillRandom(static_cast<uint32_t>(n) + 1, dtype, n, 0, dy.data());
  Activate(kind, x.data(), dtype, n, y.data(), SerialFor);
  ActivationGradient(kind, {x.data(), dtype, n}, dy.data(), dx.data(),
                     SerialFor);
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float v = LoadFloat(x.data(), dtype, i);
    uint8_t item[4];
    StoreFloat(static_cast<float>(v * Factor(kind, v)), dtype, item, 0);
    const float expected = LoadFloat(item, dtype, 0);
    const float found = LoadFloat(y.data(), dtype, i);
    const float step = dtype == DType::kF32 ? 1e-5f : 0.01f;
    wrong += !(std::abs(found - expected) <= step * (std::abs(v) + 1e-3f));
  }
  CHECK_EQ(wrong, 0);
  for (const Isa isa : AvailableIsas()) {
    const ActivationKernels* const table = &ActivationKernelsOf(isa);
    Buffer y2(bytes), dx2(bytes);
    table->forward[static_cast<int>(kind)][static_cast<int>(dtype)](x.data(), n,
                                                                    y2.data());
    table->gradient[static_cast<int>(kind)][static_cast<int>(dtype)](
        x.data(), n, dy.data(), dx2.data());
    CHECK(y2 == y);
    CHECK(dx2 == dx);
  }
  for (const ParallelFor& parallel : ParallelVariants()) {
    Buffer in_x(bytes), in_dy(bytes);
    if (n > 0) std::memcpy(in_x.data(), x.data(), bytes);
    if (n > 0) std::memcpy(in_dy.data(), dy.data(), bytes);
    ActivationGradient(kind, {x.data(), dtype, n}, in_dy.data(), in_dy.data(),
                       parallel);
    CHECK(in_dy == dx);
    ActivationGradient(kind, {in_x.data(), dtype, n}, dy.data(), in_x.data(),
                       parallel);
    CHECK(in_x == dx);
    if (n > 0) std::memcpy(in_x.data(), x.data(), bytes);
    Activate(kind, in_x.data(), dtype, n, in_x.data(), parallel);
    CHECK(in_x == y);
  }
}

}  // namespace
}  // namespace comptrain

int main() {
  using namespace comptrain;
  TestValues();
  TestSigmoids(Activation::kSilu);
  TestSigmoids(Activation::kTanhGelu);
  for (const Activation kind :
       {Activation::kGelu, Activation::kSilu, Activation::kTanhGelu}) {
    TestNotNumbers(kind);
    for (const DType dtype : kAllDTypes) {
      for (const int64_t n : {0, 1, 63, 64, 65, 1023, 1024, 1025, 20011}) {
        TestAlike(kind, dtype, n);
      }
    }
  }
  return FinishTests();
}
