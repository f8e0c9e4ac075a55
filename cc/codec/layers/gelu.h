// GELU, x Phi(x) with the normal distribution's Phi, and its gradient: one pass
// each.
#ifndef TF_COMPTRAIN_CC_CODEC_LAYERS_GELU_H_
#define TF_COMPTRAIN_CC_CODEC_LAYERS_GELU_H_

#include <cstdint>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/dtype.h"

namespace comptrain {

// y = x Phi(x), within a few units in the last place of the larger of |x| and
// |y| (the relative error of Phi grows to 1e-5 where Phi is 1e-30). y may be x.
void Gelu(const void* x, DType dtype, int64_t n, void* y,
          const ParallelFor& parallel);

// dx = dy (Phi(x) + x phi(x)), phi being the density. dx may be x or dy.
void GeluGradient(const void* x, DType dtype, int64_t n, const void* dy,
                  void* dx, const ParallelFor& parallel);

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_LAYERS_GELU_H_
