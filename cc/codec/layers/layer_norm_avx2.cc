#include "cc/codec/layers/layer_norm_kernels.h"

namespace comptrain {

const LayerNormKernels* LayerNormKernelsAvx2() {
#if defined(__AVX2__)
  return &LayerNormTable();
#else
  return nullptr;
#endif
}

}  // namespace comptrain
