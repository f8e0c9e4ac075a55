#include "cc/codec/layers/gelu_kernels.h"

namespace comptrain {

const GeluKernels* GeluKernelsAvx2() {
#if defined(__AVX2__)
  return &GeluTable();
#else
  return nullptr;
#endif
}

}  // namespace comptrain
