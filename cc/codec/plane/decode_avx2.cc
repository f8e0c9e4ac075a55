#include "cc/codec/plane/decode_vector.h"
