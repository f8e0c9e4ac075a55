#include "cc/codec/layers/batch_norm_vector.h"
#include "cc/codec/layers/formula_vector.h"
