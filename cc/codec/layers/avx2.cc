#include "cc/codec/layers/batch_norm_vector.h"
#include "cc/codec/layers/dropout_vector.h"
#include "cc/codec/layers/gelu_kernels.h"
#include "cc/codec/layers/layer_norm_kernels.h"

namespace comptrain {

const BatchNormKernels* BatchNormKernelsAvx2() {
  return COMPTRAIN_IF_VECTORS(MakeBatchNormKernels<VectorFloats>());
}
DrawBits DrawBitsAvx2() { return COMPTRAIN_IF_VECTORS(DrawBitsOf<VectorWords>); }
const GeluKernels* GeluKernelsAvx2() {
  return COMPTRAIN_IF_VECTORS(&GeluTable());
}
const LayerNormKernels* LayerNormKernelsAvx2() {
  return COMPTRAIN_IF_VECTORS(&LayerNormTable());
}

}  // namespace comptrain
