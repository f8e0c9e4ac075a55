#define COMPTRAIN_SET Avx2
#include "cc/codec/masks/bitmask_vector.h"
#include "cc/codec/masks/pool_vector.h"
