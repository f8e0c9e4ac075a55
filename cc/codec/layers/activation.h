// Activation functions x g(x) and their gradients: one pass each.
#pragma once

#include <cstdint>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/dtype.h"
#include "cc/codec/common/tensor.h"

namespace comptrain {

// GELU: g(x) = Phi(x), the distribution of the normal distribution. SiLU: g(x)
// = s(x) = 1 / (1 + exp(-x)). GELU by its tanh: g(x) = (1 + tanh u) / 2 = s(2u)
// with u = sqrt(2 / pi) (x + 0.044715 x^3).
enum class Activation { kGelu, kSilu, kTanhGelu };

// y = x g(x), within a few units in the last place of the larger of |x| and |y|
// (the relative error of Phi grows to 1e-5 where Phi is 1e-30). y may be x.
void Activate(Activation activation, const void* x, DType dtype, int64_t n,
              void* y, const ParallelFor& parallel);

// dx = dy (g(x) + x g'(x)). dx may be x or dy.
void ActivationGradient(Activation activation, const TensorIn& x,
                        const void* dy, void* dx, const ParallelFor& parallel);

}  // namespace comptrain
