#include "cc/codec/rans/prepare_vector.h"

namespace comptrain {
namespace rans {

PrepareFn Avx2Prepare(DType dtype, Coding coding) {
  return COMPTRAIN_IF_VECTORS(SelectPrepare(dtype, coding));
}

}  // namespace rans
}  // namespace comptrain
