// Instruction sets, chosen at run time.
#pragma once

namespace comptrain {

// Instruction sets a call may use; the best one the machine has by default.
enum class Isa { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kBest = 3 };

// True when this machine can run the given set.
bool IsaAvailable(Isa isa);

// What stands for `isa` of three alike: functions, or tables of them.
// static: sources for wider instruction sets include this.
template <class T>
static inline const T& ForIsa(Isa isa, const T& scalar, const T& avx2,
                              const T& avx512) {
  const bool best = isa == Isa::kBest;
  if ((best || isa == Isa::kAvx512) && IsaAvailable(Isa::kAvx512))
    return avx512;
  if ((best || isa == Isa::kAvx2) && IsaAvailable(Isa::kAvx2)) return avx2;
  return scalar;
}

}  // namespace comptrain

// Of nameScalar, nameAvx2 and nameAvx512. The latter two are in files that only
// builds for x86-64 compile: avx2.cc, *_avx2.cc, avx512.cc and *_avx512.cc.
#ifdef __x86_64__
#define COMPTRAIN_FOR_ISA(isa, name) \
  ::comptrain::ForIsa(isa, name##Scalar, name##Avx2, name##Avx512)
#else
#define COMPTRAIN_FOR_ISA(isa, name) (static_cast<void>(isa), name##Scalar)
#endif

// Declares kNameScalar, kNameAvx2 and kNameAvx512, tables of kernels of the
// type Name that give the same bits, and NameOf(isa).
#define COMPTRAIN_KERNEL_TABLES(Name)                                \
  extern const Name k##Name##Scalar, k##Name##Avx2, k##Name##Avx512; \
  static inline const Name& Name##Of(Isa isa) {                      \
    return COMPTRAIN_FOR_ISA(isa, k##Name);                          \
  }
