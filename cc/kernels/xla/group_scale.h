// What a group of values has in common: a scale, and the centre of its channel.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "cc/codec/fixed_rate/sample.h"
#include "cc/codec/fixed_rate/scale.h"
#include "cc/kernels/xla/hlo.h"
#include "cc/kernels/xla/packing.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain::hlo {

// A scale in a byte, see scale.h.
class GroupScale {
 public:
  // The smallest scale that is no smaller than x, f32; the largest where none
  // is.
  static XlaOp CodeFor(XlaOp x) {
    const XlaOp bits =
        xla::BitcastConvertType(xla::Max(x, xla::FullLike(x, 1)), xla::U32);
    const XlaOp mantissa = xla::And(bits, U32(bits, kScaleMantissa));
    XlaOp code = LeftShifted(RightShifted(bits, kScaleMantissaBits) -
                                 xla::FullLike(bits, kScaleExponentOf1),
                             2);
    for (uint32_t least : kScaleQuarters) {
      code = code + xla::ConvertElementType(xla::Gt(mantissa, U32(bits, least)),
                                            xla::U32);
    }
    code = xla::Clamp(xla::FullLike(code, 1), code, xla::FullLike(code, 255));
    code =
        xla::Select(xla::Gt(x, xla::ZerosLike(x)), code, xla::ZerosLike(code));
    return xla::ConvertElementType(code, xla::U8);
  }

  static XlaOp Of(XlaOp code) {
    const XlaOp wide = xla::ConvertElementType(code, xla::U32);
    const XlaOp quarter = xla::And(wide, xla::FullLike(wide, 3));
    XlaOp mantissa = xla::ZerosLike(wide);
    for (int i = 1; i < 4; ++i) {
      mantissa = xla::Select(xla::Eq(quarter, xla::FullLike(wide, i)),
                             U32(wide, kScaleQuarters[i]), mantissa);
    }
    const XlaOp exponent =
        RightShifted(wide, 2) + xla::FullLike(wide, kScaleExponentOf1);
    const XlaOp scale = xla::BitcastConvertType(
        xla::Or(LeftShifted(exponent, kScaleMantissaBits), mantissa), xla::F32);
    return xla::Select(xla::Eq(code, xla::ZerosLike(code)),
                       xla::ZerosLike(scale), scale);
  }

 private:
  static XlaOp U32(XlaOp like, uint32_t value) {
    return xla::Broadcast(xla::ConstantR0<uint32_t>(like.builder(), value),
                          Dims(like));
  }
};

// Values that share a scale, as operations.
class ScaleGroups {
 public:
  explicit ScaleGroups(const std::vector<int64_t>& dims)
      : dims_(dims), groups_(ScaleLayout(dims)) {}

  std::vector<int64_t> dims() const { return groups_.group_dims(); }
  // The largest magnitude of each group's finite values less their centre.
  // Taken of the ends of the group: XLA's GPU compiler finds these in the pass
  // that makes x, and its CPU compiler has vector code for them.
  XlaOp Reach(XlaOp x) const {
    return End(x, xla::Abs(x), 0, xla::CreateScalarMaxComputation);
  }
  XlaOp Reach(XlaOp x, XlaOp centres) const {
    const float none = std::numeric_limits<float>::max();
    const XlaOp centre = OfChannels(centres, dims());
    const XlaOp largest = End(x, x, -none, xla::CreateScalarMaxComputation);
    const XlaOp smallest = End(x, x, none, xla::CreateScalarMinComputation);
    return xla::Max(largest - centre, centre - smallest);
  }

  // What has one element a group, for all values.
  XlaOp Spread(XlaOp of_groups) const {
    return xla::Reshape(groups_.Values(groups_.Spread(of_groups, groups_.size)),
                        dims_);
  }
  static XlaOp OfChannels(XlaOp vector, absl::Span<const int64_t> dims) {
    return xla::BroadcastInDim(vector, dims,
                               {static_cast<int64_t>(dims.size()) - 1});
  }

 private:
  // none: in the place of values that are missing or not finite.
  template <class Computation>
  XlaOp End(XlaOp x, XlaOp values, float none,
            const Computation& computation) const {
    const XlaOp otherwise = Scalar(x, none);
    values = xla::Select(xla::IsFinite(x), values,
                         xla::Broadcast(otherwise, Dims(values)));
    return xla::Reduce(groups_.Split(values, otherwise), otherwise,
                       computation(xla::F32, x.builder()), {groups_.axis});
  }

  std::vector<int64_t> dims_;
  Groups groups_;
};

// A centre: as much of an f32 number as bfloat16 has.
inline XlaOp CentreCode(XlaOp centre) {
  const XlaOp bits = xla::BitcastConvertType(centre, xla::U32);
  return xla::ConvertElementType(RightShifted(bits, 16), xla::U16);
}
inline XlaOp CentreOf(XlaOp code) {
  const XlaOp bits = xla::ConvertElementType(code, xla::U32);
  return xla::BitcastConvertType(LeftShifted(bits, 16), xla::F32);
}

// Of each channel of values of a tensor, f32 and finite: their mean, or 0 where
// that is less than half of their standard deviation. So few far values, which
// would take the centre away from all others, have none.
inline XlaOp Centres(XlaOp values) {
  std::vector<int64_t> pixels(Dims(values).size() - 1);
  std::iota(pixels.begin(), pixels.end(), 0);
  const XlaOp zero = Scalar(values, 0);
  const auto add = xla::CreateScalarAddComputation(xla::F32, values.builder());
  const XlaOp sum = xla::Reduce(values, zero, add, pixels);
  const XlaOp squares = xla::Reduce(Squared(values), zero, add, pixels);
  const XlaOp count =
      xla::FullLike(sum, static_cast<float>(Size(values)) / Size(sum));
  const XlaOp mean = sum / count;
  const XlaOp far =
      xla::Gt(xla::FullLike(sum, kFarMean) * Squared(mean), squares / count);
  return xla::ReducePrecision(xla::Select(far, mean, xla::ZerosLike(mean)), 8,
                              7);
}

}  // namespace comptrain::hlo
