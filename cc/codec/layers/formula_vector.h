// Formulas that compilers make vectors of, for avx2.cc and avx512.cc.
#ifndef TF_COMPTRAIN_CC_CODEC_LAYERS_FORMULA_VECTOR_H_
#define TF_COMPTRAIN_CC_CODEC_LAYERS_FORMULA_VECTOR_H_

#include "cc/codec/common/vector.h"
#include "cc/codec/layers/activation_kernels.h"
#include "cc/codec/layers/layer_norm_kernels.h"

namespace comptrain {

const ActivationKernels* COMPTRAIN_NAME(ActivationKernels, )() {
  return COMPTRAIN_IF_VECTORS(&ActivationTable());
}
const LayerNormKernels* COMPTRAIN_NAME(LayerNormKernels, )() {
  return COMPTRAIN_IF_VECTORS(&LayerNormTable());
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_LAYERS_FORMULA_VECTOR_H_
