// The fixed-rate codec: quantization in a number of bits that is known when a
// step is compiled, with a scale for each group of values.
#pragma once

#include <vector>

#include "cc/codec/stream/bound.h"
#include "cc/kernels/xla/lowering.h"

namespace comptrain::hlo {

inline XlaOp Field(XlaOp state, StateField field) {
  return xla::Reshape(xla::SliceInDim(state, field, field + 1, 1, 0), {});
}

// The scale of a group with the tensor's bound. Groups of small values have
// smaller ones: at a fixed rate a finer step takes no more bits.
constexpr float kScaleOfBound = 0x1p8f;

// What a group's scale is multiplied by, in a stream with this bound.
inline XlaOp StepFor(XlaOp bound) {
  return bound * Scalar(bound, kStepOverBound / kScaleOfBound);
}
inline XlaOp StepOf(XlaOp state) { return StepFor(Field(state, kBoundUsed)); }

// A scale in a byte: quarters of an octave, from 1 to 2^63.75.
class GroupScale {
 public:
  // The smallest scale that is no smaller than x, f32; the largest where none
  // is.
  static XlaOp CodeFor(XlaOp x) {
    const XlaOp bits =
        xla::BitcastConvertType(xla::Max(x, xla::FullLike(x, 1)), xla::U32);
    const XlaOp mantissa = xla::And(bits, U32(bits, kMantissa));
    XlaOp code = LeftShifted(
        RightShifted(bits, kMantissaBits) - xla::FullLike(bits, kExponentOf1),
        2);
    for (uint32_t least : kQuarters) {
      code = code + xla::ConvertElementType(xla::Gt(mantissa, U32(bits, least)),
                                            xla::U32);
    }
    return xla::ConvertElementType(xla::Min(code, xla::FullLike(code, 255)),
                                   xla::U8);
  }

  static XlaOp Of(XlaOp code) {
    const XlaOp wide = xla::ConvertElementType(code, xla::U32);
    const XlaOp quarter = xla::And(wide, xla::FullLike(wide, 3));
    XlaOp mantissa = xla::ZerosLike(wide);
    for (int i = 1; i < 4; ++i) {
      mantissa = xla::Select(xla::Eq(quarter, xla::FullLike(wide, i)),
                             U32(wide, kQuarters[i]), mantissa);
    }
    const XlaOp exponent =
        RightShifted(wide, 2) + xla::FullLike(wide, kExponentOf1);
    return xla::BitcastConvertType(
        xla::Or(LeftShifted(exponent, kMantissaBits), mantissa), xla::F32);
  }

 private:
  static constexpr int kMantissaBits = 23, kExponentOf1 = 127;
  static constexpr uint32_t kMantissa = (1u << kMantissaBits) - 1;
  // Mantissas of 2^(i / 4).
  static constexpr uint32_t kQuarters[4] = {0, 0x1837f0, 0x3504f3, 0x5744fd};

  static XlaOp U32(XlaOp like, uint32_t value) {
    return xla::Broadcast(xla::ConstantR0<uint32_t>(like.builder(), value),
                          Dims(like));
  }
};

// A stream: for each group as many 32-bit words as a value has bits, and the
// byte of its scale. A word has as many whole codes as it holds; its spare bits
// have one bit each of the codes that are left.
//
// Members of a group lie in a dimension of their own and are combined by
// reductions along it: XLA makes a step's program from few operations, and its
// GPU compiler fuses them into a pass for the scales and one for the words.
class FixedRate {
 public:
  static constexpr int kGroup = 32;

  int bits = 8;
  bool mid_rise = false;

  absl::Status Read(OpKernelConstruction* ctx, bool with_mid_rise = true) {
    absl::Status s = ctx->GetAttr("bits", &bits);
    if (s.ok() && (bits < 2 || bits > 8)) {
      s = absl::InvalidArgumentError(
          absl::StrCat("bits must be from 2 to 8, got ", bits));
    }
    if (s.ok() && with_mid_rise) s = ctx->GetAttr("mid_rise", &mid_rise);
    return s;
  }

  // Words, then scales.
  int64_t GroupBytes() const { return 4 * bits + 1; }
  int64_t StreamBytes(absl::Span<const int64_t> dims) const {
    return TensorShape(Groups(dims, kGroup).group_dims()).num_elements() *
           GroupBytes();
  }

  struct Encoded {
    std::vector<XlaOp> parts;
    XlaOp scales;  // f32, one a group
  };

  // step: the smallest; that of a group is the smallest multiple, by a scale,
  // that its values fit in. The error is at most half of it. NaN is coded as
  // zero, as the smallest value where a mask is kept; so are negative values
  // there.
  Encoded Encode(XlaOp x, XlaOp step) const {
    const Groups groups(Dims(x), kGroup);
    const XlaOp values = F32(groups.Split(x));
    const XlaOp largest = Combined(groups, 0, Magnitude(values), xla::F32,
                                   xla::CreateScalarMaxComputation);
    const XlaOp scale_codes =
        GroupScale::CodeFor(largest / (step * Scalar(x, reach())));
    const XlaOp scales = GroupScale::Of(scale_codes);
    const XlaOp inverse = groups.Spread(Scalar(x, 1) / (step * scales), kGroup);
    return {{Words(Code(values, inverse), groups), scale_codes}, scales};
  }

  XlaOp Decode(const std::vector<XlaOp>& parts, absl::Span<const int64_t> dims,
               XlaOp step) const {
    const Groups groups(dims, kGroup);
    const XlaOp codes = Codes(parts[0], groups);
    const XlaOp code = F32(codes);
    const XlaOp steps =
        groups.Spread(GroupScale::Of(parts.back()) * step, kGroup);
    if (!mid_rise) {
      return groups.Values((code - Scalar(code, zero_code())) * steps);
    }
    return groups.Values(xla::Select(xla::Eq(codes, xla::ZerosLike(codes)),
                                     xla::ZerosLike(code),
                                     (code - Scalar(code, 0.5f)) * steps));
  }

  // Where values are not zero, of a stream that keeps the mask.
  XlaOp Mask(const std::vector<XlaOp>& parts,
             absl::Span<const int64_t> dims) const {
    const Groups groups(dims, kGroup);
    const XlaOp codes = Codes(parts[0], groups);
    return groups.Values(xla::Ne(codes, xla::ZerosLike(codes)));
  }

  // The parts as the one array of bytes that ops exchange, and again. XLA drops
  // the pair.
  XlaOp Joined(const std::vector<XlaOp>& parts) const {
    std::vector<XlaOp> bytes;
    for (const XlaOp& part : parts) {
      const XlaOp of_part = xla::BitcastConvertType(part, xla::U8);
      bytes.push_back(xla::Reshape(of_part, {Size(of_part)}));
    }
    return xla::ConcatInDim(parts[0].builder(), bytes, 0);
  }
  std::vector<XlaOp> Parts(XlaOp stream, absl::Span<const int64_t> dims) const {
    const Groups groups(dims, kGroup);
    const int64_t n = TensorShape(groups.group_dims()).num_elements();
    std::vector<int64_t> of_words = groups.SpreadDims({bits});
    of_words.push_back(4);
    const XlaOp words = xla::BitcastConvertType(
        xla::Reshape(xla::SliceInDim(stream, 0, 4 * bits * n, 1, 0), of_words),
        xla::U32);
    return {words, xla::Reshape(xla::SliceInDim(stream, 4 * bits * n,
                                                GroupBytes() * n, 1, 0),
                                groups.group_dims())};
  }

 private:
  // Codes count from the most negative one, unless the mask is kept: then zero
  // is code 0, and all others are positive.
  int zero_code() const { return mid_rise ? 0 : 1 << (bits - 1); }
  int levels() const {
    return mid_rise ? (1 << bits) - 1 : (1 << (bits - 1)) - 1;
  }
  // The largest value whose error is half a step, in steps.
  float reach() const { return mid_rise ? levels() : levels() + 0.5f; }
  int codes_a_word() const { return 32 / bits; }
  int spare_bits() const { return 32 % bits; }

  XlaOp Code(XlaOp x, XlaOp inverse_step) const {
    const XlaOp t = x * inverse_step;
    if (mid_rise) {
      const XlaOp code = xla::Clamp(Scalar(x, 1), xla::Floor(t) + Scalar(x, 1),
                                    Scalar(x, levels()));
      return ToInt(xla::Select(IsZero(x), xla::ZerosLike(x), Finite(code, 1)));
    }
    const XlaOp code = xla::Clamp(
        Scalar(x, -levels()), xla::RoundNearestEven(t), Scalar(x, levels()));
    return ToInt(Finite(code, 0) + Scalar(x, zero_code()));
  }

  // A dimension before the axis of groups combined.
  template <class Computation>
  static XlaOp Combined(const Groups& groups, int place, XlaOp x,
                        xla::PrimitiveType type,
                        const Computation& computation) {
    return xla::Reduce(x, xla::Zero(x.builder(), type),
                       computation(type, x.builder()), {groups.axis + place});
  }
  static XlaOp AllBits(const Groups& groups, int place, XlaOp x) {
    return Combined(groups, place, x, xla::U32, xla::CreateScalarOrComputation);
  }

  // Of the codes of all members, u32.
  XlaOp Words(XlaOp codes, const Groups& groups) const {
    const int n = codes_a_word(), spare = spare_bits();
    XlaOp whole =
        xla::Reshape(xla::SliceInDim(codes, 0, bits * n, 1, groups.axis),
                     groups.SpreadDims({bits, n}));
    whole = xla::ShiftLeft(whole, Times(groups.Number(whole, 1), bits));
    XlaOp words = AllBits(groups, 1, whole);
    if (spare == 0) return words;
    XlaOp left = groups.WithDimension(
        xla::SliceInDim(codes, bits * n, kGroup, 1, groups.axis), 0, bits);
    left = OneBit(xla::ShiftRightLogical(left, groups.Number(left, 0)));
    left = xla::ShiftLeft(left, SpareBit(left, groups));
    return xla::Or(words, AllBits(groups, 1, left));
  }

  // The codes of all members, u32.
  XlaOp Codes(XlaOp words, const Groups& groups) const {
    const int n = codes_a_word(), spare = spare_bits();
    XlaOp whole = groups.WithDimension(words, 1, n);
    whole = xla::ShiftRightLogical(whole, Times(groups.Number(whole, 1), bits));
    whole = xla::Reshape(xla::And(whole, xla::FullLike(whole, (1 << bits) - 1)),
                         groups.SpreadDims({bits * n}));
    if (spare == 0) return whole;
    XlaOp left = groups.WithDimension(words, 1, spare);
    left = OneBit(xla::ShiftRightLogical(left, SpareBit(left, groups)));
    left = xla::ShiftLeft(left, groups.Number(left, 0));
    return xla::ConcatInDim(words.builder(), {whole, AllBits(groups, 0, left)},
                            groups.axis);
  }

  static XlaOp OneBit(XlaOp x) { return xla::And(x, xla::FullLike(x, 1)); }
  // Where a word has its bit of a code that is left, of [bits, spare, ...].
  XlaOp SpareBit(XlaOp like, const Groups& groups) const {
    return groups.Number(like, 1) + xla::FullLike(like, codes_a_word() * bits);
  }

  static XlaOp Finite(XlaOp code, float otherwise) {
    return xla::Select(xla::Eq(code, code), code,
                       xla::FullLike(code, otherwise));
  }
  static XlaOp ToInt(XlaOp code) {
    return xla::ConvertElementType(code, xla::U32);
  }
};

// The first input, the stream of a tensor of shape dims. The builder of a
// computation would end the process when asked for the shape of what it has
// refused.
inline absl::Status CheckStream(XlaOpKernelContext* ctx, const FixedRate& rate,
                                absl::Span<const int64_t> dims) {
  return CheckShape(
      "stream", ShapeOf(ctx, 0), TensorShape({rate.StreamBytes(dims)}),
      absl::StrCat("that of ", rate.bits,
                   " bits a value for a tensor of shape ",
                   TensorShape(dims).DebugString(), " under XLA"));
}

}  // namespace comptrain::hlo
