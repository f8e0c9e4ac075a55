#define COMPTRAIN_SET Avx512
#include "cc/codec/rans/prepare_vector.h"
