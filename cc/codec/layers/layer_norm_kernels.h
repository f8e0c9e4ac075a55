// Internal: the loops of layer_norm.h for a stretch of rows, one table for each
// instruction set. All tables give the same bytes.
#pragma once

#include <cmath>
#include <cstdint>

#include "cc/codec/layers/layer_norm.h"
#include "cc/codec/layers/row_sum.h"
#include "cc/codec/common/isa.h"
#include "cc/codec/common/half.h"

namespace comptrain {

// Indexed by DType. `gradient` adds to dgamma and dbeta. scratch: channels, and
// 2 * channels for the gradient.
struct LayerNormKernels {
  void (*forward[3])(const NormRows& x, float epsilon, const LayerNormOut& out,
                     float* scratch);
  void (*affine[3])(const NormRows& x_norm, const LayerNormParams& params,
                    void* y);
  void (*gradient[3])(const NormRows& x_norm, const LayerNormSaved& saved,
                      const void* dy, const NormGradients& to, float* scratch);
};

COMPTRAIN_KERNEL_TABLES(LayerNormKernels)

template <class T>
static inline void LayerNormForward(const NormRows& x, float epsilon,
                                    const LayerNormOut& out, float* scratch) {
  const int64_t channels = x.channels;
  const float count = static_cast<float>(channels);
  const T* in = static_cast<const T*>(x.data);
  T* to = static_cast<T*>(out.x_norm);
  for (int64_t row = 0; row < x.rows; ++row, in += channels, to += channels) {
    for (int64_t c = 0; c < channels; ++c) scratch[c] = ToFloat(in[c]);
    const float mean =
        SumOf(channels, [&](int64_t c) { return scratch[c]; }) / count;
    for (int64_t c = 0; c < channels; ++c) scratch[c] -= mean;
    const float variance =
        SumOf(channels, [&](int64_t c) { return scratch[c] * scratch[c]; }) /
        count;
    const float inv_std = 1.0f / std::sqrt(variance + epsilon);
    out.inv_std[row] = inv_std;
    for (int64_t c = 0; c < channels; ++c) {
      FromFloat(scratch[c] * inv_std, &to[c]);
    }
  }
}

template <class T>
static inline void LayerNormAffineRows(const NormRows& x_norm,
                                       const LayerNormParams& params, void* y) {
  const int64_t channels = x_norm.channels;
  const T* in = static_cast<const T*>(x_norm.data);
  T* to = static_cast<T*>(y);
  for (int64_t row = 0; row < x_norm.rows;
       ++row, in += channels, to += channels) {
    for (int64_t c = 0; c < channels; ++c) {
      FromFloat(ToFloat(in[c]) * params.gamma[c] + params.beta[c], &to[c]);
    }
  }
}

template <class T>
static inline void LayerNormBackward(const NormRows& from,
                                     const LayerNormSaved& saved,
                                     const void* dy, const NormGradients& to,
                                     float* scratch) {
  const int64_t channels = from.channels;
  const T* in = static_cast<const T*>(from.data);
  const T* gradient = static_cast<const T*>(dy);
  T* out = static_cast<T*>(to.dx);
  float* x_norm = scratch;
  float* g = scratch + channels;
  const float count = static_cast<float>(channels);
  for (int64_t row = 0; row < from.rows;
       ++row, in += channels, gradient += channels, out += channels) {
    const float inv_std = saved.inv_std[row];
    for (int64_t c = 0; c < channels; ++c) x_norm[c] = ToFloat(in[c]);
    const float square =
        SumOf(channels, [&](int64_t c) { return x_norm[c] * x_norm[c]; }) /
        count;
    if (square > kMostSquareOfNorm) {
      for (int64_t c = 0; c < channels; ++c)
        x_norm[c] *= kMostSquareOfNorm / square;
    }
    for (int64_t c = 0; c < channels; ++c) {
      g[c] = ToFloat(gradient[c]);
      to.dbeta[c] += g[c];
      to.dgamma[c] += g[c] * x_norm[c];
      g[c] *= saved.gamma[c];
    }
    const float mean = SumOf(channels, [&](int64_t c) { return g[c]; }) / count;
    const float slope =
        SumOf(channels, [&](int64_t c) { return g[c] * x_norm[c]; }) / count;
    for (int64_t c = 0; c < channels; ++c) {
      FromFloat(inv_std * (g[c] - mean - x_norm[c] * slope), &out[c]);
    }
  }
}

static constexpr LayerNormKernels LayerNormTable() {
  return {
      {LayerNormForward<float>, LayerNormForward<BF16>, LayerNormForward<F16>},
      {LayerNormAffineRows<float>, LayerNormAffineRows<BF16>,
       LayerNormAffineRows<F16>},
      {LayerNormBackward<float>, LayerNormBackward<BF16>,
       LayerNormBackward<F16>}};
}

}  // namespace comptrain
