#define COMPTRAIN_SET Avx512
#include "cc/codec/statistics/gradient_stats_vector.h"
