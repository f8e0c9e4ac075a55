#include "cc/codec/fixed_rate/vector.h"

namespace comptrain {

constexpr FixedRateKernels kFixedRateKernelsScalar = kFixedRateKernelsHere;

}  // namespace comptrain
