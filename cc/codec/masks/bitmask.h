// One bit per element: what the gradient of ReLU, ReLU6, LeakyReLU and Dropout
// needs. Bit i of the mask is bit (i % 8) of byte i / 8.
#pragma once

#include <cstdint>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/dtype.h"

namespace comptrain {

inline int64_t BitmaskBytes(int64_t n) { return (n + 7) / 8; }

// bits[i] = lower < x[i] && x[i] < upper (NaN: 0). x: n elements, host. bits:
// BitmaskBytes(n); unused high bits of the last byte are zero.
void BitmaskPack(const void* x, DType dtype, int64_t n, float lower,
                 float upper, uint8_t* bits, const ParallelFor& parallel);

// dx[i] = dy[i] * (bits[i] ? on : off); on == 1 passes dy through exactly, and
// off == 0 gives +0 (also where dy is NaN or infinite). dx may be dy.
void BitmaskGradient(const uint8_t* bits, DType dtype, int64_t n, float on,
                     float off, const void* dy, void* dx,
                     const ParallelFor& parallel);

}  // namespace comptrain
