#include "cc/codec/bitmask.h"

#include <algorithm>

#include "cc/codec/half.h"

namespace comptrain {
namespace {

template <class T>
void PackRange(const T* x, int64_t n, float lower, float upper, uint8_t* bits) {
  for (int64_t i = 0; i < n; i += 8) {
    const int count = static_cast<int>(std::min<int64_t>(8, n - i));
    unsigned byte = 0;
    for (int j = 0; j < count; ++j) {
      const float v = ToFloat(x[i + j]);
      byte |= static_cast<unsigned>(lower < v && v < upper) << j;
    }
    bits[i / 8] = static_cast<uint8_t>(byte);
  }
}

template <class T>
T Scaled(T v, float factor) {
  if (factor == 1.0f) return v;
  T out;
  FromFloat(ToFloat(v) * factor, &out);
  return out;
}

template <class T>
void GradientRange(const uint8_t* bits, int64_t n, float on, float off,
                   const T* dy, T* dx) {
  for (int64_t i = 0; i < n; ++i) {
    if ((bits[i / 8] >> (i % 8)) & 1) {
      dx[i] = Scaled(dy[i], on);
    } else {
      dx[i] = off == 0.0f ? T{} : Scaled(dy[i], off);
    }
  }
}

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

void BitmaskPack(const void* x, DType dtype, int64_t n, float lower,
                 float upper, uint8_t* bits, const ParallelFor& parallel) {
  WithStorageType(dtype, [&](auto type) {
    const auto* in = static_cast<const decltype(type)*>(x);
    ForUnits(n, parallel, [&](int64_t begin, int64_t end) {
      PackRange(in + begin, end - begin, lower, upper, bits + begin / 8);
    });
  });
}

void BitmaskGradient(const uint8_t* bits, DType dtype, int64_t n, float on,
                     float off, const void* dy, void* dx,
                     const ParallelFor& parallel) {
  WithStorageType(dtype, [&](auto type) {
    const auto* in = static_cast<const decltype(type)*>(dy);
    auto* out = static_cast<decltype(type)*>(dx);
    ForUnits(n, parallel, [&](int64_t begin, int64_t end) {
      GradientRange(bits + begin / 8, end - begin, on, off, in + begin,
                    out + begin);
    });
  });
}

}  // namespace comptrain
