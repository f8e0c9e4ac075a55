// cc/codec/stream/row_scales.h around calls of a GPU's kernels, which know
// nothing of rows: operations that XLA fuses.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "cc/codec/stream/row_scales.h"
#include "cc/kernels/xla/hlo.h"

namespace comptrain::hlo {

// x with its rows divided by their scales, and back.
class RowScalesOnGpu {
 public:
  static RowScalesOnGpu Of(XlaOp x) {
    const std::vector<int64_t> dims = Dims(x);
    const auto last = static_cast<int64_t>(dims.size()) - 1;
    const XlaOp weighted =
        F32(x) * xla::BroadcastInDim(Weights(x), dims, {last});
    const XlaOp square = Sum(Squared(weighted), {last}) /
                         Scalar(x, static_cast<float>(dims.back()));
    const XlaOp zero = xla::ZerosLike(square);
    const XlaOp known = xla::And(xla::Gt(square, zero), xla::IsFinite(square));
    const XlaOp bits = xla::BitcastConvertType(square, xla::S32);
    const XlaOp length = F32(xla::ShiftRightArithmetic(
        xla::ShiftRightLogical(bits, Int(x, 23)) - Int(x, 126), Int(x, 1)));
    const std::vector<int64_t> all = AllOf(square);
    const XlaOp sum = Sum(xla::Select(known, length, zero), all);
    const XlaOp count = xla::Max(Sum(F32(known), all), Scalar(x, 1));
    const XlaOp usual = xla::Floor(sum / count + Scalar(x, 0.5f));
    const XlaOp apart = length - usual;
    const XlaOp differs =
        xla::And(known, xla::Ge(xla::Abs(apart), Scalar(x, kLeastRowScale)));
    const XlaOp scale =
        xla::Clamp(Scalar(x, -kMostRowScale), xla::Select(differs, apart, zero),
                   Scalar(x, kMostRowScale));
    return RowScalesOnGpu(xla::ConvertElementType(
        xla::Select(xla::Eq(square, zero), xla::FullLike(square, kZeroRow),
                    scale),
        xla::S8));
  }
  // bytes: as bytes() has them. dims: of the tensor.
  static RowScalesOnGpu Read(XlaOp bytes, absl::Span<const int64_t> dims) {
    return RowScalesOnGpu(xla::BitcastConvertType(
        xla::Reshape(bytes, dims.first(dims.size() - 1)), xla::S8));
  }

  XlaOp bytes() const {
    return xla::Reshape(xla::BitcastConvertType(exponents_, xla::U8),
                        {Size(exponents_)});
  }
  // RmsOfRowScales.
  XlaOp Rms() const {
    const XlaOp factors = Factors(1);
    const XlaOp sum = Sum(Squared(factors), AllOf(factors));
    return xla::Sqrt(sum / Scalar(sum, static_cast<float>(Size(factors))));
  }
  // x, of any type.
  XlaOp Divide(XlaOp x) const { return Scaled(x, -1); }
  XlaOp Multiply(XlaOp x) const { return Scaled(x, 1); }

 private:
  static constexpr int64_t kSampled = 128;  // rows that channels are judged by

  explicit RowScalesOnGpu(XlaOp exponents) : exponents_(exponents) {}

  // [channels]
  static XlaOp Weights(XlaOp x) {
    const int64_t channels = Dims(x).back(), rows = Size(x) / channels;
    // All places of a sample are met, as its first and its last.
    const int64_t places = Dims(x)[std::max<size_t>(Dims(x).size(), 2) - 2];
    int64_t stride = std::max<int64_t>(1, rows / kSampled);
    while (std::gcd(stride, places) != 1) ++stride;
    const XlaOp sample =
        FiniteOrZero(F32(xla::Slice(xla::Reshape(x, {rows, channels}), {0, 0},
                                    {rows, channels}, {stride, 1})));
    const XlaOp nonzero = Sum(F32(xla::Ne(sample, Scalar(x, 0))), {0});
    const XlaOp root = Sum(xla::Sqrt(xla::Sqrt(xla::Abs(sample))), {0}) /
                       xla::Max(nonzero, Scalar(x, 1));
    const XlaOp scale = Squared(Squared(root));
    const XlaOp least =
        Sum(scale, {0}) *
        Scalar(x, kLeastOfChannels / static_cast<float>(channels));
    return xla::FullLike(scale, 1) / xla::Max(scale, least);
  }
  static XlaOp Int(XlaOp like, int32_t value) {
    return xla::ConstantR0<int32_t>(like.builder(), value);
  }
  static XlaOp Sum(XlaOp x, absl::Span<const int64_t> over) {
    xla::XlaBuilder* const b = x.builder();
    return xla::Reduce(x, xla::Zero(b, xla::F32),
                       xla::CreateScalarAddComputation(xla::F32, b), over);
  }
  static std::vector<int64_t> AllOf(XlaOp x) {
    std::vector<int64_t> all(Dims(x).size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  // As FactorOf of row_scales.cc.
  XlaOp Factors(int sign) const {
    const XlaOp e = xla::ConvertElementType(exponents_, xla::S32);
    const XlaOp power = xla::BitcastConvertType(
        xla::ShiftLeft(Int(e, 127) + Int(e, sign) * e, Int(e, 23)), xla::F32);
    return xla::Select(xla::Eq(e, Int(e, kZeroRow)),
                       xla::FullLike(power, sign > 0 ? 0 : 1), power);
  }
  XlaOp Scaled(XlaOp x, int sign) const {
    const XlaOp factors =
        xla::BroadcastInDim(Factors(sign), Dims(x), AllOf(exponents_));
    const auto type = x.builder()->GetShape(x)->element_type();
    const XlaOp scaled = xla::ConvertElementType(F32(x) * factors, type);
    if (type != xla::F16 || sign > 0) return scaled;
    // As MultiplyBy of row_scales.cc.
    const XlaOp zero = xla::ZerosLike(x);
    const XlaOp is_lost = xla::And(xla::Ne(x, zero), xla::Eq(scaled, zero));
    const XlaOp next =
        xla::ConvertElementType(xla::Sign(F32(x)) * Scalar(x, 0x1p-24f), type);
    return xla::Select(is_lost, next, scaled);
  }

  XlaOp exponents_;  // one a row
};

}  // namespace comptrain::hlo
