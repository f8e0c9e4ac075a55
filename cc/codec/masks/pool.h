// Max pooling that remembers where each maximum was, as a few bits inside the
// window, instead of keeping its input and output.
#pragma once

#include <cstdint>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/dtype.h"

namespace comptrain {

// Channels-last pooling over up to three spatial dimensions (unused leading
// ones are 1): in [batch, in_size..., channels] -> [batch, out_size...,
// channels].
struct PoolShape {
  int64_t batch = 0, channels = 0;
  int64_t in_size[3] = {1, 1, 1};
  int64_t out_size[3] = {1, 1, 1};
  int64_t window[3] = {1, 1, 1};
  int64_t stride[3] = {1, 1, 1};
  int64_t pad_before[3] = {0, 0, 0};  // padding never wins
};

// Bits that hold one position inside the window: 1, 2, 4, 8 or 16 (the
// smallest of them that can count window[0] * window[1] * window[2]).
int PoolIndexBits(const PoolShape& shape);
// Bytes of the packed index: output elements in row-major order, lowest bits
// of a byte first, padded with zero bits.
int64_t PoolIndexBytes(const PoolShape& shape);

// index[o] = position (row-major inside the window) of the first maximum;
// NaN counts as the maximum (the first NaN wins). Also writes y when y is not
// null.
void MaxPoolIndex(const void* x, DType dtype, const PoolShape& shape, void* y,
                  uint8_t* index, const ParallelFor& parallel);

// dx = sum of dy over the windows whose maximum was there. Deterministic:
// parallel over stretches of the input, never by atomics. Accumulates in
// f32 for 16-bit types where windows overlap. A damaged index that points into
// padding or outside the input is dropped, never written.
void MaxPoolGradient(const uint8_t* index, DType dtype, const PoolShape& shape,
                     const void* dy, void* dx, const ParallelFor& parallel);

}  // namespace comptrain
