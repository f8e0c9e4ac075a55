#include "cc/codec/masks/bitmask_vector.h"
#include "cc/codec/masks/pool_vector.h"

namespace comptrain {

const BitmaskKernels* BitmaskKernelsAvx512() {
  return COMPTRAIN_IF_VECTORS(BitmaskTable());
}
const PoolKernels* PoolKernelsAvx512() { return COMPTRAIN_IF_VECTORS(PoolTable()); }

}  // namespace comptrain
