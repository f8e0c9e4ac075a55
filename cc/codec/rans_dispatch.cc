// Chooses codec B's kernels at run time.
#include "cc/codec/plane.h"
#include "cc/codec/rans_chunk.h"

namespace comptrain {
namespace rans {

ChunkKernels SelectChunkKernels(Isa isa, DType dtype, bool mid_rise) {
  const bool best = isa == Isa::kBest;
  if ((best || isa == Isa::kAvx512) && IsaAvailable(Isa::kAvx512)) {
    return Avx512ChunkKernels(dtype, mid_rise);
  }
  if ((best || isa == Isa::kAvx2) && IsaAvailable(Isa::kAvx2)) {
    return Avx2ChunkKernels(dtype, mid_rise);
  }
  return ScalarChunkKernels(dtype, mid_rise);
}

}  // namespace rans
}  // namespace comptrain
