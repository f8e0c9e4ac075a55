// Layer normalization over the last dimension, and its gradient: one pass each.
#pragma once

#include <cstdint>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/dtype.h"
#include "cc/codec/layers/norm.h"

namespace comptrain {

// Of a row of x_norm, whose mean square is 1 at most: from here on it is mostly
// error, and the more so the less of it is left.
constexpr float kMostSquareOfNorm = 4;

// gamma, beta: `channels` floats, host.
struct LayerNormParams {
  const float* gamma;
  const float* beta;
  float epsilon;
};

// What a forward pass writes, into memory of the caller: y as x, and `rows`
// floats.
struct LayerNormOut {
  void* y;
  float* inv_std;
};

// What a gradient reads beside x and dy: `channels` and `rows` floats, host.
struct LayerNormSaved {
  const float* gamma;
  const float* inv_std;
};

// With the mean and the population variance of each row, in float32:
// inv_std = 1 / sqrt(variance + epsilon), x_norm = (x - mean) * inv_std,
// y = x_norm * gamma + beta.
// x, y: [rows][channels]; gamma, beta: [channels]. y may be x.
void LayerNorm(const NormRows& x, const LayerNormParams& params,
               const LayerNormOut& out, const ParallelFor& parallel);

// With g = dy * gamma: dx = (g - mean(g) - x_norm * mean(g * x_norm)) *
// inv_std, dgamma = sum dy * x_norm and dbeta = sum dy over the rows. inv_std
// is the forward pass's: errors of a held x would only enlarge its variance,
// and so shrink every gradient. A row of x_norm whose mean square is above
// kMostSquareOfNorm is multiplied by that over its mean square. The same bits
// for any number of threads. dx may be x or dy.
void LayerNormGradient(const NormRows& x, const LayerNormSaved& saved,
                       const void* dy, const NormGradients& out,
                       const ParallelFor& parallel);

}  // namespace comptrain
