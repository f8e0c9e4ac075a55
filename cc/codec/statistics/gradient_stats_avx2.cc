#define COMPTRAIN_SET Avx2
#include "cc/codec/statistics/gradient_stats_vector.h"
