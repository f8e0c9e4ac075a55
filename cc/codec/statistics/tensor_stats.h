// The range of a tensor, which error bounds may be relative to.
#pragma once

#include <cstdint>

#include "cc/codec/common/dtype.h"
#include "cc/codec/common/parallel.h"

namespace comptrain {

// Largest less smallest finite value of x; 0 when there is none.
double ValueRange(const void* x, DType dtype, int64_t n,
                  const ParallelFor& parallel);

}  // namespace comptrain
