#include "cc/codec/dropout.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cc/codec/bitmask.h"
#include "cc/codec/dropout_kernels.h"
#include "cc/codec/half.h"
#include "cc/codec/plane.h"

namespace comptrain {
namespace {

DrawBits BestDraw() {
  static const DrawBits best = [] {
    DrawBits draw = nullptr;
    if (IsaAvailable(Isa::kAvx512)) draw = DrawBitsAvx512();
    if (draw == nullptr && IsaAvailable(Isa::kAvx2)) draw = DrawBitsAvx2();
    return draw != nullptr ? draw : DrawBitsScalar;
  }();
  return best;
}

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

void DrawBitsScalar(const DrawParams& params, int64_t first, int64_t bytes,
                    uint8_t* bits) {
  const Philox& p = params.philox;
  for (int64_t i = 0; i < 2 * bytes; ++i) {
    const uint64_t low = p.counter[0] + static_cast<uint64_t>(2 * first + i);
    const uint64_t high = p.counter[1] + (low < p.counter[0]);
    uint32_t c[4] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                     static_cast<uint32_t>(high),
                     static_cast<uint32_t>(high >> 32)};
    uint32_t key_a = static_cast<uint32_t>(p.key);
    uint32_t key_b = static_cast<uint32_t>(p.key >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const uint64_t a = static_cast<uint64_t>(kPhiloxA) * c[0];
      const uint64_t b = static_cast<uint64_t>(kPhiloxB) * c[2];
      c[0] = static_cast<uint32_t>(b >> 32) ^ c[1] ^ key_a;
      c[1] = static_cast<uint32_t>(b);
      c[2] = static_cast<uint32_t>(a >> 32) ^ c[3] ^ key_b;
      c[3] = static_cast<uint32_t>(a);
      key_a += kPhiloxKeyA;
      key_b += kPhiloxKeyB;
    }
    unsigned kept = 0;
    for (int word = 0; word < 4; ++word) {
      kept |= static_cast<unsigned>((c[word] & params.low) >= params.threshold)
              << word;
    }
    if (i % 2 == 0) {
      bits[i / 2] = static_cast<uint8_t>(kept);
    } else {
      bits[i / 2] |= static_cast<uint8_t>(kept << 4);
    }
  }
}

void Dropout(const void* x, DType dtype, int64_t n, float rate, float scale,
             const Philox& philox, void* y, uint8_t* bits,
             const ParallelFor& parallel) {
  if (n <= 0) return;
  const DrawBits draw = BestDraw();
  const uint32_t numbers = 1u << MantissaBits(dtype);
  const auto threshold = static_cast<uint32_t>(
      std::ceil(static_cast<double>(Rounded(rate, dtype)) * numbers));
  const DrawParams params = {philox, numbers - 1, threshold};
  const float on = Rounded(scale, dtype);
  const auto* in = static_cast<const uint8_t*>(x);
  auto* out = static_cast<uint8_t*>(y);
  const int64_t item_bytes = ItemBytes(dtype);
  parallel((n + kUnit - 1) / kUnit, 3 * kUnit, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t at = unit * kUnit, count = std::min(kUnit, n - at);
      uint8_t drawn[kUnit / 8];
      const int64_t bytes = BitmaskBytes(count);
      draw(params, at / 8,
           (bytes + kDropoutBytes - 1) / kDropoutBytes * kDropoutBytes, drawn);
      if (count % 8 != 0) drawn[bytes - 1] &= (1 << count % 8) - 1;
      std::memcpy(bits + at / 8, drawn, bytes);
      BitmaskGradient(drawn, dtype, count, on, 0, in + at * item_bytes,
                      out + at * item_bytes, SerialFor);
    }
  });
}

}  // namespace comptrain
