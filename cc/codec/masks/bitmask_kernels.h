// Internal: the loops of bitmask.h for one stretch of elements, one table for
// each instruction set. All tables give the same bytes.
#pragma once

#include <cstdint>

#include "cc/codec/common/isa.h"
#include "cc/codec/common/half.h"

namespace comptrain {

// Indexed by DType. A stretch starts on a byte of the mask; n is any size.
struct BitmaskKernels {
  void (*pack[3])(const void* x, int64_t n, float lower, float upper,
                  uint8_t* bits);
  void (*gradient[3])(const uint8_t* bits, int64_t n, float on, float off,
                      const void* dy, void* dx);
};

COMPTRAIN_KERNEL_TABLES(BitmaskKernels)

template <class T>
static inline void PackScalar(const void* x, int64_t n, float lower,
                              float upper, uint8_t* bits) {
  const T* in = static_cast<const T*>(x);
  for (int64_t i = 0; i < n; i += 8) {
    const int count = n - i < 8 ? static_cast<int>(n - i) : 8;
    unsigned byte = 0;
    for (int j = 0; j < count; ++j) {
      const float v = ToFloat(in[i + j]);
      byte |= static_cast<unsigned>(lower < v && v < upper) << j;
    }
    bits[i / 8] = static_cast<uint8_t>(byte);
  }
}

template <class T>
COMPTRAIN_HD static inline T ScaleScalar(T v, float factor) {
  if (factor == 1.0f) return v;
  T out;
  FromFloat(ToFloat(v) * factor, &out);
  return out;
}

template <class T>
static inline void GradientScalar(const uint8_t* bits, int64_t n, float on,
                                  float off, const void* dy, void* dx) {
  const T* in = static_cast<const T*>(dy);
  T* out = static_cast<T*>(dx);
  for (int64_t i = 0; i < n; ++i) {
    const bool bit = (bits[i / 8] >> (i % 8)) & 1;
    if (bit) {
      out[i] = ScaleScalar(in[i], on);
    } else {
      out[i] = off == 0.0f ? T{} : ScaleScalar(in[i], off);
    }
  }
}

}  // namespace comptrain
