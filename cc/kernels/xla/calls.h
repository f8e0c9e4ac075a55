// Calls of this library's functions from steps that XLA compiles.
#pragma once

#include <string>
#include <vector>

#include "cc/kernels/xla/hlo.h"

namespace comptrain::hlo {

// By which names XLA finds them: registered for "Host" (host_calls.cc) and, in
// a library with GPU kernels, for "CUDA" (gpu.cc).
constexpr char kEncode[] = "comptrain_fixed_rate_encode";
constexpr char kDecode[] = "comptrain_fixed_rate_decode";
constexpr char kMaskGradient[] = "comptrain_fixed_rate_mask_gradient";
constexpr char kBatchNormGradient[] =
    "comptrain_fixed_rate_batch_norm_gradient";
constexpr char kMaxPool[] = "comptrain_max_pool";
constexpr char kMaxPoolGradient[] = "comptrain_max_pool_gradient";

struct Call {
  const char* target;      // one of those
  std::string attributes;  // as an MLIR dictionary's entries
  std::vector<XlaOp> operands;
  // Of the first result: the operand whose place it takes; below 0: none.
  int64_t in_place_of = -1;
};

// Its results. Operands are read row-major.
std::vector<XlaOp> Made(const Call& call, std::vector<xla::Shape> results);

xla::Shape RowMajor(const xla::Shape& shape);
xla::Shape RowMajorShapeOf(XlaOp op);
// Bytes.
xla::Shape Memory(size_t bytes);

}  // namespace comptrain::hlo
