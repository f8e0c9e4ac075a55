#include "cc/codec/statistics/gradient_stats_vector.h"
