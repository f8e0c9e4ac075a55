#define COMPTRAIN_SET Avx512
#include "cc/codec/masks/bitmask_vector.h"
#include "cc/codec/masks/pool_vector.h"
