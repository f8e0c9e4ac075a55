#include "cc/codec/plane/encode_vector.h"

namespace comptrain {
namespace plane {

EncodeTileFn Avx512Encoder(DType dtype, Coding coding) {
  return COMPTRAIN_IF_VECTORS(SelectEncoder(dtype, coding));
}

}  // namespace plane
}  // namespace comptrain
