// The fixed-rate codec on the CPU: quantization in a number of bits that is
// known before there are values, with a scale for each group of values. Steps
// that XLA compiles call it, or the same for a GPU (cc/codec/fixed_rate_gpu).
#pragma once

#include <cstdint>
#include <vector>

#include "cc/codec/common/isa.h"
#include "cc/codec/common/parallel.h"
#include "cc/codec/common/tensor.h"
#include "cc/codec/fixed_rate/layout.h"
#include "cc/codec/stream/bound.h"

namespace comptrain {

// A tensor of at least one dimension, row-major, and how it is coded.
struct FixedRateTensor {
  FixedRateCoding coding;
  std::vector<int64_t> dims;
  DType dtype = DType::kF32;
};

// What is encoded; memory of the host.
struct FixedRateInput {
  const void* x;       // at least one value
  const float* state;  // kStateFields, of the step before
  BoundRule bound;
  bool group_statistics;  // whether kWidened and kRmsBound are found anew
};

// Where it is written; memory of the host.
struct FixedRateOutput {
  uint8_t* stream;  // StreamBytes(dims)
  float* state;     // kStateFields
};

// Of a stream; memory of the host.
struct FixedRateStream {
  FixedRateTensor of;
  const uint8_t* data;
  const float* state;  // after it was encoded; null where the mask is read
};

// Each group has the smallest scale that its values fit in, and the error of a
// value is at most half of its step. NaN is coded as the centre; where the mask
// is kept as the smallest value, and so are negative values. The same bytes for
// any number of threads and any instruction set.
void FixedRateEncode(const FixedRateTensor& of, const FixedRateInput& in,
                     const FixedRateOutput& out, const ParallelFor& parallel,
                     Isa isa = Isa::kBest);

// x_hat: of.dtype.
void FixedRateDecode(const FixedRateStream& stream, void* x_hat,
                     const ParallelFor& parallel, Isa isa = Isa::kBest);

// A gradient, or the sum of two, which is rounded to their type.
struct GradientTerms {
  const void* first;
  const void* second = nullptr;  // null: there is one
};

// dx = dy where the value is not zero, else 0, of a stream that keeps the mask.
// dy, dx: of.dtype; dx may be one of dy.
void FixedRateMaskGradient(const FixedRateStream& stream,
                           const GradientTerms& dy, void* dx,
                           const ParallelFor& parallel, Isa isa = Isa::kBest);

}  // namespace comptrain
