// Layer normalization over the last dimension in two steps, each one pass, and
// the gradient of both in one. Between them is x_norm, which is all that the
// gradient and what is made of y need.
#pragma once

#include <cstdint>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/dtype.h"
#include "cc/codec/layers/norm.h"

namespace comptrain {

// Of a row of x_norm, whose mean square is 1 at most: from here on it is mostly
// error, and the more so the less of it is left.
constexpr float kMostSquareOfNorm = 4;

// What a forward pass writes, into memory of the caller: x_norm as x, and
// `rows` floats.
struct LayerNormOut {
  void* x_norm;
  float* inv_std;
};

// `channels` floats each, host.
struct LayerNormParams {
  const float* gamma;
  const float* beta;
};

// What a gradient reads beside x_norm and dy: `channels` and `rows` floats,
// host.
struct LayerNormSaved {
  const float* gamma;
  const float* inv_std;
};

// With the mean and the population variance of each row, in float32:
// inv_std = 1 / sqrt(variance + epsilon), x_norm = (x - mean) * inv_std.
// x_norm may be x.
void LayerNorm(const NormRows& x, float epsilon, const LayerNormOut& out,
               const ParallelFor& parallel);

// y = x_norm * gamma + beta, as x_norm, which it may be.
void LayerNormAffine(const NormRows& x_norm, const LayerNormParams& params,
                     void* y, const ParallelFor& parallel);

// With g = dy * gamma: dx = (g - mean(g) - x_norm * mean(g * x_norm)) *
// inv_std, dgamma = sum dy * x_norm and dbeta = sum dy over the rows. A row of
// x_norm whose mean square is above kMostSquareOfNorm is multiplied by that
// over its mean square. The same bits for any number of threads. dx may be
// x_norm or dy.
void LayerNormGradient(const NormRows& x_norm, const LayerNormSaved& saved,
                       const void* dy, const NormGradients& out,
                       const ParallelFor& parallel);

}  // namespace comptrain
