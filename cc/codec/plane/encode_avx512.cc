#define COMPTRAIN_SET Avx512
#include "cc/codec/plane/encode_vector.h"
