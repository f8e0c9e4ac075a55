#include "cc/codec/layers/softmax.h"

#include "cc/codec/layers/softmax_kernels.h"

namespace comptrain {

constexpr SoftmaxKernels kSoftmaxKernelsScalar = SoftmaxTable();

void SoftmaxGradient(const NormRows& y, const void* dy, void* dx,
                     const ParallelFor& parallel) {
  if (y.rows <= 0 || y.channels <= 0) return;
  const auto gradient =
      SoftmaxKernelsOf(Isa::kBest).gradient[static_cast<int>(y.dtype)];
  const auto* p = static_cast<const uint8_t*>(y.data);
  const auto* g = static_cast<const uint8_t*>(dy);
  auto* out = static_cast<uint8_t*>(dx);
  const int64_t row_bytes = y.channels * ItemBytes(y.dtype);
  parallel(y.rows, 2 * y.channels, [&](int64_t begin, int64_t end) {
    gradient({p + begin * row_bytes, y.dtype, end - begin, y.channels},
             g + begin * row_bytes, out + begin * row_bytes);
  });
}

}  // namespace comptrain
