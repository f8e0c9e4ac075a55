// Dropout in one pass: random bits, and the elements that they keep.
#pragma once

#include <cstdint>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/dtype.h"
#include "cc/codec/common/tensor.h"

namespace comptrain {

// Where TensorFlow's stateless random numbers begin: Philox 4x32-10 (Salmon et
// al., Parallel random numbers: as easy as 1, 2, 3, SC 2011). Elements 4 g to
// 4 g + 3 are the four words of the counter plus g.
struct Philox {
  uint64_t key;
  uint64_t counter[2];  // the low half first
};

// What a call draws by, and what it multiplies the kept elements by.
struct DropoutDraw {
  float rate, scale;
  Philox philox;
};

// bits[i] = u[i] >= rate, u being what StatelessRandomUniformV2 draws for n
// elements of the type; y[i] = x[i] * scale where the bit is set, else +0. The
// mask is as in bitmask.h. y may be x.
void Dropout(const TensorIn& x, const DropoutDraw& of, void* y, uint8_t* bits,
             const ParallelFor& parallel);

}  // namespace comptrain
