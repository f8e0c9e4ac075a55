#include "cc/codec/layers/layer_norm.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "cc/codec/layers/layer_norm_kernels.h"
#include "cc/codec/testing/data.h"
#include "cc/codec/testing/isas.h"
#include "cc/codec/testing/threads.h"

namespace comptrain {
namespace {

constexpr float kEpsilon = 1e-3f;

struct Case {
  int64_t rows, channels;
  Buffer x, dy;
  std::vector<float> gamma, beta;

  Case(DType dtype, int64_t rows, int64_t channels)
      : rows(rows),
        channels(channels),
        x(rows * channels * ItemBytes(dtype),
          static_cast<int>(ItemBytes(dtype))),
        dy(rows * channels * ItemBytes(dtype)),
        gamma(channels),
        beta(channels) {
    const int64_t n = rows * channels;
    FillRandom(static_cast<uint32_t>(n), dtype, n, 0, x.data());
    FillRandom(static_cast<uint32_t>(n) + 1, dtype, n, 0, dy.data());
    for (int64_t c = 0; c < channels; ++c) {
      gamma[c] = 0.5f + static_cast<float>(c % 7) / 4;
      beta[c] = static_cast<float>(c % 5) - 2;
    }
  }
};

double Tolerance(DType dtype) {
  return dtype == DType::kF32 ? 1e-5 : dtype == DType::kF16 ? 2e-3 : 2e-2;
}

int64_t Wrong(double found, double expected, double tolerance) {
  return !(std::abs(found - expected) <= tolerance * (1 + std::abs(expected)));
}

// Against the formulas, in doubles.
void TestFormulas(DType dtype, const Case& d) {
  const int64_t n = d.channels, bytes = d.x.bytes();
  Buffer normal(bytes), y(bytes), dx(bytes);
  std::vector<float> dgamma(n), dbeta(n), inv_std(d.rows);
  const NormRows x_norm = {normal.data(), dtype, d.rows, n};
  LayerNorm({d.x.data(), dtype, d.rows, n}, kEpsilon,
            {normal.data(), inv_std.data()}, SerialFor);
  LayerNormAffine(x_norm, {d.gamma.data(), d.beta.data()}, y.data(), SerialFor);
  LayerNormGradient(x_norm, {d.gamma.data(), inv_std.data()}, d.dy.data(),
                    {dx.data(), dgamma.data(), dbeta.data()}, SerialFor);
  const double tolerance = Tolerance(dtype);
  std::vector<double> sum(n), sum_x(n);
  int64_t wrong = 0;
  for (int64_t row = 0; row < d.rows; ++row) {
    auto x = [&](int64_t c) {
      return LoadFloat(d.x.data(), dtype, row * n + c);
    };
    auto dy = [&](int64_t c) {
      return LoadFloat(d.dy.data(), dtype, row * n + c);
    };
    double mean = 0, variance = 0, mean_g = 0, mean_gx = 0;
    for (int64_t c = 0; c < n; ++c) mean += x(c) / static_cast<double>(n);
    for (int64_t c = 0; c < n; ++c) {
      variance += (x(c) - mean) * (x(c) - mean) / static_cast<double>(n);
    }
    const double inv = 1 / std::sqrt(variance + kEpsilon);
    wrong += Wrong(inv_std[row] / inv, 1, 1e-5);
    for (int64_t c = 0; c < n; ++c) {
      const double g = dy(c) * d.gamma[c];
      // As it was rounded: what follows is made of that.
      const double x_norm = LoadFloat(normal.data(), dtype, row * n + c);
      wrong += Wrong(x_norm, (x(c) - mean) * inv, tolerance);
      mean_g += g / static_cast<double>(n);
      mean_gx += g * x_norm / static_cast<double>(n);
      sum[c] += dy(c);
      sum_x[c] += dy(c) * x_norm;
    }
    for (int64_t c = 0; c < n; ++c) {
      const double x_norm = LoadFloat(normal.data(), dtype, row * n + c);
      wrong += Wrong(LoadFloat(y.data(), dtype, row * n + c),
                     x_norm * d.gamma[c] + d.beta[c], tolerance);
      wrong += Wrong(LoadFloat(dx.data(), dtype, row * n + c),
                     inv * (dy(c) * d.gamma[c] - mean_g - x_norm * mean_gx),
                     tolerance * (1 + inv));
    }
  }
  for (int64_t c = 0; c < n; ++c) {
    wrong += Wrong(dgamma[c], sum_x[c], 1e-4 * std::sqrt(1.0 + d.rows));
    wrong += Wrong(dbeta[c], sum[c], 1e-5);
  }
  CHECK_EQ(wrong, 0);
}

// Rows that are smaller than the errors of what is held of them: the less of
// x_norm is left, the more of it is error.
void TestErrors(const Case& d, float times) {
  const int64_t n = d.channels, count = d.rows * n;
  std::vector<float> normal(count), dx(count), dgamma(n), dbeta(n),
      inv_std(d.rows);
  LayerNorm({d.x.data(), DType::kF32, d.rows, n}, kEpsilon,
            {normal.data(), inv_std.data()}, SerialFor);
  for (float& value : normal) value *= times;
  LayerNormGradient({normal.data(), DType::kF32, d.rows, n},
                    {d.gamma.data(), inv_std.data()}, d.dy.data(),
                    {dx.data(), dgamma.data(), dbeta.data()}, SerialFor);
  int64_t wrong = 0;
  for (int64_t row = 0; row < d.rows; ++row) {
    const auto* const dy =
        reinterpret_cast<const float*>(d.dy.data()) + row * n;
    double square = 0, mean_g = 0, mean_gx = 0;
    std::vector<double> x_norm(n);
    for (int64_t c = 0; c < n; ++c) {
      x_norm[c] = normal[row * n + c];
      square += x_norm[c] * x_norm[c] / static_cast<double>(n);
    }
    for (int64_t c = 0; c < n; ++c) {
      if (square > kMostSquareOfNorm) x_norm[c] *= kMostSquareOfNorm / square;
      mean_g += dy[c] * d.gamma[c] / static_cast<double>(n);
      mean_gx += dy[c] * d.gamma[c] * x_norm[c] / static_cast<double>(n);
    }
    for (int64_t c = 0; c < n; ++c) {
      wrong += Wrong(dx[row * n + c] / inv_std[row],
                     dy[c] * d.gamma[c] - mean_g - x_norm[c] * mean_gx, 1e-4);
    }
  }
  CHECK_EQ(wrong, 0);
}

// All tables and threads alike, in place or not.
void TestAlike(DType dtype, const Case& d) {
  const int64_t n = d.channels, bytes = d.x.bytes();
  const int type = static_cast<int>(dtype);
  Buffer normal(bytes), y(bytes), dx(bytes);
  std::vector<float> scratch(2 * n), sums(2 * n), inv_std(d.rows);
  const LayerNormKernels* plain = &kLayerNormKernelsScalar;
  const NormRows x = {d.x.data(), dtype, d.rows, n};
  const NormRows x_norm = {normal.data(), dtype, d.rows, n};
  const LayerNormParams params = {d.gamma.data(), d.beta.data()};
  plain->forward[type](x, kEpsilon, {normal.data(), inv_std.data()},
                       scratch.data());
  plain->affine[type](x_norm, params, y.data());
  const LayerNormSaved saved = {d.gamma.data(), inv_std.data()};
  plain->gradient[type](x_norm, saved, d.dy.data(),
                        {dx.data(), sums.data(), sums.data() + n},
                        scratch.data());
  for (const Isa isa : AvailableIsas()) {
    const LayerNormKernels* const table = &LayerNormKernelsOf(isa);
    Buffer normal2(bytes), y2(bytes), dx2(bytes);
    std::vector<float> sums2(2 * n), inv_std2(d.rows);
    table->forward[type](x, kEpsilon, {normal2.data(), inv_std2.data()},
                         scratch.data());
    CHECK(normal2 == normal);
    CHECK(inv_std2 == inv_std);
    table->affine[type](x_norm, params, y2.data());
    table->gradient[type](x_norm, saved, d.dy.data(),
                          {dx2.data(), sums2.data(), sums2.data() + n},
                          scratch.data());
    CHECK(y2 == y);
    CHECK(dx2 == dx);
    CHECK(sums2 == sums);
  }
  std::vector<float> first;
  for (const ParallelFor& parallel : ParallelVariants()) {
    Buffer in_x(bytes), in_dy(bytes);
    if (bytes > 0) std::memcpy(in_x.data(), d.x.data(), bytes);
    if (bytes > 0) std::memcpy(in_dy.data(), d.dy.data(), bytes);
    std::vector<float> found(2 * n, NAN), found_inv(d.rows, NAN);
    LayerNormGradient(x_norm, saved, in_dy.data(),
                      {in_dy.data(), found.data(), found.data() + n}, parallel);
    CHECK(in_dy == dx);
    if (first.empty()) first = found;
    CHECK(found == first);
    const NormRows in_place = {in_x.data(), dtype, d.rows, n};
    LayerNorm(in_place, kEpsilon, {in_x.data(), found_inv.data()}, parallel);
    CHECK(in_x == normal);
    CHECK(found_inv == inv_std);
    LayerNormAffine(in_place, params, in_x.data(), parallel);
    CHECK(in_x == y);
  }
}

}  // namespace
}  // namespace comptrain

int main() {
  using namespace comptrain;
  for (const DType dtype : kAllDTypes) {
    for (const int64_t channels : {1, 5, 16, 33, 384}) {
      for (const int64_t rows : {0, 1, 31, 33, 200}) {
        const Case d(dtype, rows, channels);
        TestFormulas(dtype, d);
        TestAlike(dtype, d);
      }
    }
  }
  for (const float times : {1.02f, 1.2f, 30.0f}) {
    TestErrors(Case(DType::kF32, 33, 384), times);
  }
  const Case tall(DType::kF32, 5000,
                  8);  // more rows than fit blocks of the least size
  TestFormulas(DType::kF32, tall);
  TestAlike(DType::kF32, tall);
  return FinishTests();
}
