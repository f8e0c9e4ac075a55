// Instruction sets, chosen at run time.
#ifndef TF_COMPTRAIN_CC_CODEC_COMMON_ISA_H_
#define TF_COMPTRAIN_CC_CODEC_COMMON_ISA_H_

namespace comptrain {

// Instruction sets a call may use; the best one the machine has by default.
enum class Isa { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kBest = 3 };

// True when this machine can run the given set, and this was built for it.
bool IsaAvailable(Isa isa);

// Whether *_avx2.cc and *_avx512.cc were compiled for their sets: not where the
// machine this is built for has none such.
bool BuiltForAvx2();
bool BuiltForAvx512();

// What stands for `isa` of three alike, mostly functions that return kernels.
// static: sources for wider instruction sets include this.
template <class T>
static inline T ForIsa(Isa isa, T scalar, T avx2, T avx512) {
  const bool best = isa == Isa::kBest;
  if ((best || isa == Isa::kAvx512) && IsaAvailable(Isa::kAvx512))
    return avx512;
  if ((best || isa == Isa::kAvx2) && IsaAvailable(Isa::kAvx2)) return avx2;
  return scalar;
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_COMMON_ISA_H_
