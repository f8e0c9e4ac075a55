// Calls of this library's functions from steps that XLA compiles.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
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

inline xla::Shape RowMajor(const xla::Shape& shape) {
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(shape.element_type(),
                                                       shape.dimensions());
}
inline xla::Shape RowMajorShapeOf(XlaOp op) {
  return RowMajor(op.builder()->GetShape(op).value());
}

// Its results. Operands are read row-major.
inline std::vector<XlaOp> Made(const Call& call,
                               std::vector<xla::Shape> results) {
  std::vector<xla::Shape> shapes;
  for (const XlaOp& operand : call.operands) {
    shapes.push_back(RowMajorShapeOf(operand));
  }
  const bool is_one = results.size() == 1;
  const xla::Shape shape =
      is_one ? results[0] : xla::ShapeUtil::MakeTupleShape(results);
  std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>>
      aliases;
  if (call.in_place_of >= 0) {
    aliases.push_back({is_one ? xla::ShapeIndex{} : xla::ShapeIndex{0},
                       {call.in_place_of, {}}});
  }
  const XlaOp made = xla::CustomCallWithLayout(
      call.operands[0].builder(), call.target, call.operands, shape, shapes,
      absl::StrFormat("{%s}", call.attributes), /*has_side_effect=*/false,
      aliases, /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  if (is_one) return {made};
  std::vector<XlaOp> parts;
  for (size_t i = 0; i < results.size(); ++i) {
    parts.push_back(xla::GetTupleElement(made, static_cast<int64_t>(i)));
  }
  return parts;
}

// Bytes.
inline xla::Shape Memory(size_t bytes) {
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(
      xla::U8, {static_cast<int64_t>(bytes)});
}

}  // namespace comptrain::hlo
