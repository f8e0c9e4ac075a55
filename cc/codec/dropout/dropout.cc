#include "cc/codec/dropout/dropout.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cc/codec/masks/bitmask.h"
#include "cc/codec/dropout/dropout_kernels.h"
#include "cc/codec/common/half.h"
#include "cc/codec/common/isa.h"

namespace comptrain {
namespace {

struct OneWord {
  static constexpr int kWidth = 1;
  using Words = uint64_t;
  static Words All(uint64_t v) { return v; }
  static Words Load(const uint64_t* p) { return *p; }
  static Words High(Words a) { return a >> 32; }
  static Words Times(Words a, Words b) {
    return (a & 0xffffffff) * (b & 0xffffffff);
  }
  static Words And(Words a, Words b) { return a & b; }
  static Words Xor(Words a, Words b, Words c) { return a ^ b ^ c; }
  static uint32_t Greater(Words a, Words b) {
    return static_cast<int64_t>(a) > static_cast<int64_t>(b);
  }
  static uint32_t Spread(uint32_t bits, int k) { return bits << k; }
};

// Elements in a unit of parallel work: a mask of 512 bytes stays in cache until
// it is applied.
constexpr int64_t kUnit = 4096;

// As the type has it: the rate is compared, and the scale multiplied, there.
float Rounded(float v, DType dtype) {
  if (dtype == DType::kBF16) {
    BF16 half;
    FromFloat(v, &half);
    return ToFloat(half);
  }
  if (dtype == DType::kF16) {
    F16 half;
    FromFloat(v, &half);
    return ToFloat(half);
  }
  return v;
}

int MantissaBits(DType dtype) {
  return dtype == DType::kBF16 ? 7 : dtype == DType::kF16 ? 10 : 23;
}

}  // namespace

constexpr DropoutKernels kDropoutKernelsScalar = {DrawBitsOf<OneWord>};

void Dropout(const TensorIn& x, const DropoutDraw& of, void* y, uint8_t* bits,
             const ParallelFor& parallel) {
  if (x.n <= 0) return;
  const auto draw = DropoutKernelsOf(Isa::kBest).draw;
  const uint32_t numbers = 1u << MantissaBits(x.dtype);
  const auto threshold = static_cast<uint32_t>(
      std::ceil(static_cast<double>(Rounded(of.rate, x.dtype)) * numbers));
  const DrawParams params = {of.philox, numbers - 1, threshold};
  const float on = Rounded(of.scale, x.dtype);
  const auto* in = static_cast<const uint8_t*>(x.data);
  auto* out = static_cast<uint8_t*>(y);
  const int64_t item_bytes = ItemBytes(x.dtype);
  parallel(
      (x.n + kUnit - 1) / kUnit, 3 * kUnit, [&](int64_t begin, int64_t end) {
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t at = unit * kUnit, count = std::min(kUnit, x.n - at);
          uint8_t drawn[kUnit / 8];
          const int64_t bytes = BitmaskBytes(count);
          draw(params, at / 8,
               (bytes + kDropoutBytes - 1) / kDropoutBytes * kDropoutBytes,
               drawn);
          if (count % 8 != 0) drawn[bytes - 1] &= (1 << count % 8) - 1;
          std::memcpy(bits + at / 8, drawn, bytes);
          BitmaskGradient(drawn, {on, 0},
                          {in + at * item_bytes, x.dtype, count},
                          out + at * item_bytes, SerialFor);
        }
      });
}

}  // namespace comptrain
