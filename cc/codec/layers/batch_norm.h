// The gradient of batch normalization: straight from the stream of its input,
// plane's or one of a fixed rate, which is decoded in cache, so that the
// decoded input is never a tensor; or from that tensor, which other codecs
// decode in one go.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/tensor.h"
#include "cc/codec/fixed_rate/fixed_rate.h"
#include "cc/codec/layers/norm.h"
#include "cc/codec/plane/plane.h"
#include "cc/codec/common/status.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

// What the forward pass knows of each channel: `channels` floats each, host.
struct BatchNormChannels {
  int64_t channels = 1;  // size of the last dimension
  const float* gamma = nullptr;
  const float* mean = nullptr;
  const float* inv_std = nullptr;  // 1 / sqrt(population variance + epsilon)
};

// With x_norm = (x_hat - mean) * inv_std and m = n / channels:
//
//   dbeta = sum dy, dgamma = sum dy * x_norm        (over each channel)
//   dx = gamma * inv_std * (dy - dbeta / m - x_norm * dgamma / m)
//
// where what errors of x_hat add to the mean of x_norm is taken off: dx sums up
// to zero, as the gradient of what was there does. What made x may have a mean
// far above its deviation, and multiplies that sum with it.
//
// stream: of n elements of dtype, checked as PlaneDecode checks it; x_hat is
// what it stands for in f32, before PlaneDecode's rounding to dtype. dy, dx: n
// elements of dtype, host, may be the same buffer. dgamma, dbeta: `channels`
// floats. All unspecified unless ok. The same bits for any number of threads.
Status BatchNormGradient(const StreamIn& stream, const void* dy,
                         const BatchNormChannels& of, const NormGradients& out,
                         const ParallelFor& parallel, Isa isa = Isa::kBest);

// The same from x_hat: n elements of dtype, host.
Status BatchNormGradientOf(const TensorIn& x_hat, const void* dy,
                           const BatchNormChannels& of,
                           const NormGradients& out,
                           const ParallelFor& parallel, Isa isa = Isa::kBest);

// The same from a stream of a fixed rate, which cannot be damaged.
void BatchNormGradientOfFixedRate(const FixedRateStream& stream, const void* dy,
                                  const BatchNormChannels& of,
                                  const NormGradients& out,
                                  const ParallelFor& parallel,
                                  Isa isa = Isa::kBest);

}  // namespace comptrain
