#include "cc/codec/masks/bitmask.h"

#include <algorithm>

#include "cc/codec/masks/bitmask_kernels.h"
#include "cc/codec/common/isa.h"

namespace comptrain {
namespace {

// Elements in a unit of parallel work: a multiple of 8, so that no two units
// share a byte of the mask.
constexpr int64_t kUnit = 4096;

void ForUnits(int64_t n, const ParallelFor& parallel, const RangeBody& body) {
  if (n <= 0) return;
  const int64_t units = (n + kUnit - 1) / kUnit;
  parallel(units, kUnit / 2, [&](int64_t begin, int64_t end) {
    body(begin * kUnit, std::min(n, end * kUnit));
  });
}

}  // namespace

constexpr BitmaskKernels kBitmaskKernelsScalar = {
    {PackScalar<float>, PackScalar<BF16>, PackScalar<F16>},
    {GradientScalar<float>, GradientScalar<BF16>, GradientScalar<F16>}};

void BitmaskPack(const TensorIn& x, const Interval& where, uint8_t* bits,
                 const ParallelFor& parallel) {
  const auto pack =
      BitmaskKernelsOf(Isa::kBest).pack[static_cast<int>(x.dtype)];
  const auto* in = static_cast<const uint8_t*>(x.data);
  const int64_t item_bytes = ItemBytes(x.dtype);
  ForUnits(x.n, parallel, [&](int64_t begin, int64_t end) {
    pack(in + begin * item_bytes, end - begin, where.lower, where.upper,
         bits + begin / 8);
  });
}

void BitmaskGradient(const uint8_t* bits, const MaskFactors& factors,
                     const TensorIn& dy, void* dx,
                     const ParallelFor& parallel) {
  const auto gradient =
      BitmaskKernelsOf(Isa::kBest).gradient[static_cast<int>(dy.dtype)];
  const auto* in = static_cast<const uint8_t*>(dy.data);
  auto* out = static_cast<uint8_t*>(dx);
  const int64_t item_bytes = ItemBytes(dy.dtype);
  ForUnits(dy.n, parallel, [&](int64_t begin, int64_t end) {
    gradient(bits + begin / 8, end - begin, factors.on, factors.off,
             in + begin * item_bytes, out + begin * item_bytes);
  });
}

}  // namespace comptrain
