#include "cc/codec/plane/encode_vector.h"
