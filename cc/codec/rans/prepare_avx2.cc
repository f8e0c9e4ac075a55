#define COMPTRAIN_SET Avx2
#include "cc/codec/rans/prepare_vector.h"
