// Small expressions of HLO.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace comptrain::hlo {

using xla::XlaOp;

inline XlaOp F32(XlaOp x) { return xla::ConvertElementType(x, xla::F32); }
inline XlaOp Scalar(XlaOp like, float value) {
  return xla::ConstantR0<float>(like.builder(), value);
}
inline std::vector<int64_t> Dims(XlaOp x) {
  const xla::Shape shape = x.builder()->GetShape(x).value();
  return {shape.dimensions().begin(), shape.dimensions().end()};
}
inline XlaOp Zeros(xla::XlaBuilder* builder, xla::PrimitiveType type,
                   absl::Span<const int64_t> dims) {
  return xla::Broadcast(xla::Zero(builder, type), dims);
}
// 0 in the type of x.
inline XlaOp ZeroOf(XlaOp x) {
  return xla::Zero(x.builder(), x.builder()->GetShape(x)->element_type());
}
inline int64_t Size(XlaOp x) {
  return xla::ShapeUtil::ElementsIn(*x.builder()->GetShape(x));
}
inline XlaOp Squared(XlaOp x) { return x * x; }
// x, f32, with zeros for NaN and infinities.
inline XlaOp FiniteOrZero(XlaOp x) {
  return xla::Select(xla::IsFinite(x), x, xla::ZerosLike(x));
}
inline XlaOp IsZero(XlaOp x) {
  return xla::Lt(xla::Abs(x), Scalar(x, std::numeric_limits<float>::min()));
}

// The first element, a scalar.
inline XlaOp FirstOf(XlaOp x) {
  const xla::Shape shape = x.builder()->GetShape(x).value();
  const std::vector<int64_t> start(shape.dimensions().size(), 0),
      one(start.size(), 1);
  return xla::Reshape(xla::Slice(x, start, one, one), {});
}

}  // namespace comptrain::hlo
