#define COMPTRAIN_SET Avx2
#include "cc/codec/plane/encode_vector.h"
