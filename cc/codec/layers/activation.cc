#include "cc/codec/layers/activation.h"

#include <algorithm>

#include "cc/codec/layers/activation_kernels.h"
#include "cc/codec/common/isa.h"

namespace comptrain {
namespace {

constexpr int64_t kUnit = 16 * kActivationBlock;  // elements of parallel work

void ForUnits(int64_t n, const ParallelFor& parallel, const RangeBody& body) {
  if (n <= 0) return;
  parallel((n + kUnit - 1) / kUnit, 6 * kUnit, [&](int64_t begin, int64_t end) {
    body(begin * kUnit, std::min(n, end * kUnit));
  });
}

}  // namespace

constexpr ActivationKernels kActivationKernelsScalar = ActivationTable();

void Activate(Activation activation, const void* x, DType dtype, int64_t n,
              void* y, const ParallelFor& parallel) {
  const auto forward =
      ActivationKernelsOf(Isa::kBest)
          .forward[static_cast<int>(activation)][static_cast<int>(dtype)];
  const auto* in = static_cast<const uint8_t*>(x);
  auto* out = static_cast<uint8_t*>(y);
  const int64_t item = ItemBytes(dtype);
  ForUnits(n, parallel, [&](int64_t begin, int64_t end) {
    forward(in + begin * item, end - begin, out + begin * item);
  });
}

void ActivationGradient(Activation activation, const TensorIn& x,
                        const void* dy, void* dx, const ParallelFor& parallel) {
  const auto gradient =
      ActivationKernelsOf(Isa::kBest)
          .gradient[static_cast<int>(activation)][static_cast<int>(x.dtype)];
  const auto* in = static_cast<const uint8_t*>(x.data);
  const auto* g = static_cast<const uint8_t*>(dy);
  auto* out = static_cast<uint8_t*>(dx);
  const int64_t item = ItemBytes(x.dtype);
  ForUnits(x.n, parallel, [&](int64_t begin, int64_t end) {
    gradient(in + begin * item, end - begin, g + begin * item,
             out + begin * item);
  });
}

}  // namespace comptrain
