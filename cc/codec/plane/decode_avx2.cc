#include "cc/codec/plane/decode_vector.h"

namespace comptrain {
namespace plane {

TileKernels Avx2Kernels(DType dtype, Coding coding) {
  return COMPTRAIN_IF_VECTORS(
      SelectKernelsOf(Avx2Encoder(dtype, coding), dtype, coding));
}

}  // namespace plane
}  // namespace comptrain
