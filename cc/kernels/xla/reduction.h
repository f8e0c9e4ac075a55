// Sums and largest values.
#pragma once

#include <utility>
#include <vector>

#include "cc/kernels/xla/hlo.h"
#include "cc/kernels/xla/packing.h"

namespace comptrain::hlo {

enum Reduction { kSum, kLargest };  // kLargest: or 0

// All elements of each operand reduced: operands are f32, of one shape, and
// folded first. A sum counts exactly below 2^24. In one pass, except on the
// CPU, whose compiler has vector code for one operand only.
std::vector<XlaOp> Reduced(
    bool on_cpu, const Groups& fold,
    const std::vector<std::pair<XlaOp, Reduction>>& operands);

}  // namespace comptrain::hlo
