// The gradient of a softmax over the last dimension: one pass.
#pragma once

#include "cc/codec/common/parallel.h"
#include "cc/codec/layers/norm.h"

namespace comptrain {

// dx = (dy - sum(dy * y)) * y, the sum being over a row. y: [rows][channels],
// what the softmax made; dy, dx: likewise. The same bits for any number of
// threads. dx may be y or dy.
void SoftmaxGradient(const NormRows& y, const void* dy, void* dx,
                     const ParallelFor& parallel);

}  // namespace comptrain
