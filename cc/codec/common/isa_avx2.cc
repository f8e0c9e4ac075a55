#include "cc/codec/common/isa.h"

namespace comptrain {

bool BuiltForAvx2() {
#ifdef __AVX2__
  return true;
#else
  return false;
#endif
}

}  // namespace comptrain
