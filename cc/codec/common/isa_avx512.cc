#include "cc/codec/common/isa.h"

namespace comptrain {

bool BuiltForAvx512() {
#ifdef __AVX512VBMI2__
  return true;
#else
  return false;
#endif
}

}  // namespace comptrain
