// One bit per element: what the gradient of ReLU, ReLU6, LeakyReLU and Dropout
// needs. Bit i of the mask is bit (i % 8) of byte i / 8.
#pragma once

#include <cstdint>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/dtype.h"
#include "cc/codec/common/tensor.h"

namespace comptrain {

inline int64_t BitmaskBytes(int64_t n) { return (n + 7) / 8; }

struct Interval {
  float lower, upper;  // neither is inside
};
// What gradients are multiplied by where a bit is set, and where not.
struct MaskFactors {
  float on, off;
};

// bits[i] = lower < x[i] && x[i] < upper (NaN: 0). x: n elements, host. bits:
// BitmaskBytes(n); unused high bits of the last byte are zero.
void BitmaskPack(const TensorIn& x, const Interval& where, uint8_t* bits,
                 const ParallelFor& parallel);

// dx[i] = dy[i] * (bits[i] ? on : off); on == 1 passes dy through exactly, and
// off == 0 gives +0 (also where dy is NaN or infinite). dx may be dy.
void BitmaskGradient(const uint8_t* bits, const MaskFactors& factors,
                     const TensorIn& dy, void* dx, const ParallelFor& parallel);

}  // namespace comptrain
