#include "cc/codec/layers/layer_norm_kernels.h"

namespace comptrain {

const LayerNormKernels* LayerNormKernelsAvx512() {
#if defined(__AVX512VBMI2__)
  return &LayerNormTable();
#else
  return nullptr;
#endif
}

}  // namespace comptrain
