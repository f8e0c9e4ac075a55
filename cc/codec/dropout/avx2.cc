#include "cc/codec/dropout/dropout_vector.h"
