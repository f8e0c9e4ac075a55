#include "cc/codec/masks/bitmask_vector.h"
#include "cc/codec/masks/pool_vector.h"
