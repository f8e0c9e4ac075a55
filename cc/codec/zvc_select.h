// Internal: the kernels of codec C for an instruction set.
#ifndef TF_COMPTRAIN_CC_CODEC_ZVC_SELECT_H_
#define TF_COMPTRAIN_CC_CODEC_ZVC_SELECT_H_

#include "cc/codec/plane.h"
#include "cc/codec/zvc_kernels.h"

namespace comptrain {
namespace zvc {

inline const ChunkKernels* SelectKernels(Isa isa) {
  const bool best = isa == Isa::kBest;
  const ChunkKernels* k = nullptr;
  if ((best || isa == Isa::kAvx512) && IsaAvailable(Isa::kAvx512)) {
    k = Avx512ChunkKernels();
  }
  if (k == nullptr && (best || isa == Isa::kAvx2) &&
      IsaAvailable(Isa::kAvx2)) {
    k = Avx2ChunkKernels();
  }
  return k != nullptr ? k : ScalarChunkKernels();
}

}  // namespace zvc
}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_ZVC_SELECT_H_
