// Layer normalization over the last dimension, and its gradient: one pass each.
#pragma once

#include <cstdint>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/dtype.h"
#include "cc/codec/layers/norm.h"

namespace comptrain {

// gamma, beta: `channels` floats, host; a gradient reads no beta.
struct LayerNormParams {
  const float* gamma;
  const float* beta;
  float epsilon;
};

// With the mean and the population variance of each row, in float32:
// x_norm = (x - mean) / sqrt(variance + epsilon), y = x_norm * gamma + beta.
// x, y: [rows][channels]; gamma, beta: [channels]. y may be x.
void LayerNorm(const NormRows& x, const LayerNormParams& params, void* y,
               const ParallelFor& parallel);

// With g = dy * gamma: dx = (g - mean(g) - x_norm * mean(g * x_norm)) /
// sqrt(variance + epsilon), dgamma = sum dy * x_norm and dbeta = sum dy over
// the rows. The same bits for any number of threads. dx may be x or dy.
void LayerNormGradient(const NormRows& x, const LayerNormParams& params,
                       const void* dy, const NormGradients& out,
                       const ParallelFor& parallel);

}  // namespace comptrain
