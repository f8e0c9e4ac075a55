#define COMPTRAIN_SET Avx512
#include "cc/codec/plane/decode_vector.h"
