// Chooses the instruction set at run time.
#include "cc/codec/plane.h"
#include "cc/codec/plane_tile.h"

namespace comptrain {

bool IsaAvailable(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
    case Isa::kBest:
      return true;
    case Isa::kAvx2:
    case Isa::kAvx512:
      return false;
  }
  return false;
}

namespace plane {

TileKernels SelectKernels(Isa /*isa*/, DType dtype, bool mid_rise) {
  return ScalarKernels(dtype, mid_rise);
}

}  // namespace plane
}  // namespace comptrain
