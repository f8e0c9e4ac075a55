// Chooses codec B's kernels at run time.
#include "cc/codec/plane.h"
#include "cc/codec/rans_chunk.h"

namespace comptrain {
namespace rans {

ChunkKernels SelectChunkKernels(Isa isa, DType dtype, Coding coding) {
  const bool best = isa == Isa::kBest;
  if ((best || isa == Isa::kAvx512) && IsaAvailable(Isa::kAvx512)) {
    return Avx512ChunkKernels(dtype, coding);
  }
  if ((best || isa == Isa::kAvx2) && IsaAvailable(Isa::kAvx2)) {
    return Avx2ChunkKernels(dtype, coding);
  }
  return ScalarChunkKernels(dtype, coding);
}

}  // namespace rans
}  // namespace comptrain
