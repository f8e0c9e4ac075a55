#include "cc/codec/fixed_rate/vector.h"

namespace comptrain {

constexpr FixedRateKernels kFixedRateKernelsAvx2 = kFixedRateKernelsHere;

}  // namespace comptrain
