#include "cc/codec/statistics/gradient_stats_vector.h"

namespace comptrain {

const StatsKernels* StatsKernelsAvx2() {
  return COMPTRAIN_IF_VECTORS(StatsTable());
}

}  // namespace comptrain
