#include "cc/codec/fixed_rate/vector.h"

namespace comptrain {

constexpr FixedRateKernels kFixedRateKernelsAvx512 = kFixedRateKernelsHere;

}  // namespace comptrain
