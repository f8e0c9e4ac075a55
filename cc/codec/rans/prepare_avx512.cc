#include "cc/codec/rans/prepare_vector.h"
