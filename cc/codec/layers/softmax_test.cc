#include "cc/codec/layers/softmax.h"

#include <cmath>
#include <cstring>

#include "cc/codec/layers/softmax_kernels.h"
#include "cc/codec/testing/data.h"
#include "cc/codec/testing/isas.h"
#include "cc/codec/testing/threads.h"

namespace comptrain {
namespace {

// Against sums in double precision; all tables, threads and types alike, in
// place or not.
void TestRows(DType dtype, int64_t rows, int64_t channels) {
  const int64_t n = rows * channels, bytes = n * ItemBytes(dtype);
  Buffer y(bytes, static_cast<int>(ItemBytes(dtype))), dy(bytes), dx(bytes);
  FillRandom(static_cast<uint32_t>(n), dtype, n, 0, y.data());
  FillRandom(static_cast<uint32_t>(n) + 1, dtype, n, 0, dy.data());
  const NormRows in = {y.data(), dtype, rows, channels};
  SoftmaxGradient(in, dy.data(), dx.data(), SerialFor);
  int64_t wrong = 0;
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0, size = 0;
    for (int64_t c = 0; c < channels; ++c) {
      const double term =
          LoadFloat(y.data(), dtype, row * channels + c) *
          double{LoadFloat(dy.data(), dtype, row * channels + c)};
      sum += term;
      size += std::abs(term);
    }
    for (int64_t i = row * channels; i < (row + 1) * channels; ++i) {
      const double p = LoadFloat(y.data(), dtype, i);
      const double g = LoadFloat(dy.data(), dtype, i);
      const double step = dtype == DType::kF32 ? 1e-5 : 0.01;
      wrong += !(std::abs(LoadFloat(dx.data(), dtype, i) - (g - sum) * p) <=
                 step * (size + std::abs(g) + 1e-3) * (std::abs(p) + 1e-3));
    }
  }
  CHECK_EQ(wrong, 0);
  for (const Isa isa : AvailableIsas()) {
    Buffer again(bytes);
    SoftmaxKernelsOf(isa).gradient[static_cast<int>(dtype)](in, dy.data(),
                                                            again.data());
    CHECK(again == dx);
  }
  for (const ParallelFor& parallel : ParallelVariants()) {
    Buffer in_y(bytes), in_dy(bytes);
    if (n > 0) std::memcpy(in_y.data(), y.data(), bytes);
    if (n > 0) std::memcpy(in_dy.data(), dy.data(), bytes);
    SoftmaxGradient(in, in_dy.data(), in_dy.data(), parallel);
    CHECK(in_dy == dx);
    SoftmaxGradient({in_y.data(), dtype, rows, channels}, dy.data(),
                    in_y.data(), parallel);
    CHECK(in_y == dx);
  }
}

}  // namespace
}  // namespace comptrain

int main() {
  using namespace comptrain;
  for (const DType dtype : kAllDTypes) {
    for (const int64_t channels : {0, 1, 15, 16, 17, 100, 1000}) {
      for (const int64_t rows : {0, 1, 7, 129}) {
        TestRows(dtype, rows, channels);
      }
    }
  }
  return FinishTests();
}
