// The instruction sets of this machine, for tests that try them all.
#ifndef TF_COMPTRAIN_CC_CODEC_TESTING_ISAS_H_
#define TF_COMPTRAIN_CC_CODEC_TESTING_ISAS_H_

#include <vector>

#include "cc/codec/common/isa.h"

namespace comptrain {

inline std::vector<Isa> AvailableIsas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (IsaAvailable(isa)) isas.push_back(isa);
  }
  return isas;
}

// What the functions return that there are for them, the scalar one first.
template <class T>
std::vector<T> OfAvailableIsas(T (*scalar)(), T (*avx2)(), T (*avx512)()) {
  std::vector<T> all;
  for (const Isa isa : AvailableIsas()) {
    all.push_back(ForIsa(isa, scalar, avx2, avx512)());
  }
  return all;
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_TESTING_ISAS_H_
