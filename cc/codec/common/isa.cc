#include "cc/codec/common/isa.h"

namespace comptrain {
namespace {

// What the files *_avx2.cc and *_avx512.cc are compiled with.
bool MachineHasAvx2() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // callers may be static initialisers
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") &&
#if !defined(__clang__)  // some versions cannot ask; every AVX2 machine has it
         __builtin_cpu_supports("f16c") &&
#endif
         __builtin_cpu_supports("bmi2");
#else
  return false;
#endif
}

bool MachineHasAvx512() {
#if defined(__x86_64__)
  return MachineHasAvx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vbmi2");
#else
  return false;
#endif
}

}  // namespace

bool IsaAvailable(Isa isa) {
  static const bool avx2 = MachineHasAvx2();
  static const bool avx512 = MachineHasAvx512();
  switch (isa) {
    case Isa::kScalar:
    case Isa::kBest:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
  }
  return false;
}

}  // namespace comptrain
