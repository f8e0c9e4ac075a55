// What functions take together of a tensor or of a stream. The caller owns the
// memory, host or device as the function says.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/codec/common/dtype.h"

namespace comptrain {

// n elements one after the other, aligned to their size.
struct TensorIn {
  const void* data;
  DType dtype;
  int64_t n;
};

// A stream and what its reader takes it for: its own header is held to that.
struct StreamIn {
  const uint8_t* data;
  size_t bytes;
  DType dtype;  // of the tensor, as is n, its elements
  int64_t n;
};

}  // namespace comptrain
