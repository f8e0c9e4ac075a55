#define COMPTRAIN_SET Avx2
#include "cc/codec/plane/decode_vector.h"
