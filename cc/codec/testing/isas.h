// The instruction sets of this machine, for tests that try them all.
#pragma once

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

}  // namespace comptrain
