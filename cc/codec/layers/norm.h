// What the normalizations of this folder share.
#pragma once

#include <cstdint>

#include "cc/codec/common/dtype.h"

namespace comptrain {

// [rows][channels] elements, which the caller owns.
struct NormRows {
  const void* data;
  DType dtype;
  int64_t rows, channels;
};

// What a backward pass writes, into memory of the caller: of the input, in its
// type, and `channels` floats each.
struct NormGradients {
  void* dx;
  float* dgamma;
  float* dbeta;
};

}  // namespace comptrain
