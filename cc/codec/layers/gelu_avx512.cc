#include "cc/codec/layers/gelu_kernels.h"

namespace comptrain {

const GeluKernels* GeluKernelsAvx512() {
#if defined(__AVX512VBMI2__)
  return &GeluTable();
#else
  return nullptr;
#endif
}

}  // namespace comptrain
