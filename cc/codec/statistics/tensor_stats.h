// The scale of a tensor, which error bounds are relative to.
#pragma once

#include <cstdint>

#include "cc/codec/common/dtype.h"
#include "cc/codec/common/parallel.h"

namespace comptrain {

// Estimates the standard deviation (zeros included) of x from a fixed,
// data-independent sample of whole cache lines (every element when n is
// small). Non-finite elements are left out. Deterministic.
double SampleSigma(const void* x, DType dtype, int64_t n);

// Largest less smallest finite value of x; 0 when there is none.
double ValueRange(const void* x, DType dtype, int64_t n,
                  const ParallelFor& parallel);

}  // namespace comptrain
