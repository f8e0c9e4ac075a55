#include "cc/codec/zvc/chunk_vector.h"
