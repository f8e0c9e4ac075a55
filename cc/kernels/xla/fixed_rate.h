// The fixed-rate codec: quantization in a number of bits that is known when a
// step is compiled, with a scale for each group of values.
#pragma once

#include <vector>

#include "cc/codec/fixed_rate/layout.h"
#include "cc/codec/fixed_rate/scale.h"
#include "cc/codec/stream/bound.h"
#include "cc/kernels/xla/dither.h"
#include "cc/kernels/xla/group_scale.h"
#include "cc/kernels/xla/lowering.h"

namespace comptrain::hlo {

inline XlaOp Field(XlaOp state, StateField field) {
  return xla::Reshape(xla::SliceInDim(state, field, field + 1, 1, 0), {});
}

// What a group's scale is multiplied by, in a stream with this bound.
inline XlaOp StepFor(XlaOp bound) {
  return bound * Scalar(bound, kStepOverBound / kScaleOfBound);
}
// Of a stream, by the state after it. Decoders gate it with the stream: else
// XLA might make the dither of a tensor once, and keep it.
inline XlaOp SeedOf(XlaOp state) { return DitherSeed(Field(state, kSteps)); }
inline XlaOp StepOf(XlaOp state) { return StepFor(Field(state, kBoundUsed)); }

// A stream, see FixedRateCoding, as operations of XLA's: for its GPU compiler.
//
// Members of a group lie in a dimension of their own and are combined by
// reductions along it: XLA makes a step's program from few operations, and
// fuses them into a pass for the scales and one for the words.
class FixedRate : public FixedRateCoding {
 public:
  // with_mask: of an op that reads no other streams.
  absl::Status Read(OpKernelConstruction* ctx, bool with_mask = false) {
    absl::Status s = ctx->GetAttr("bits", &bits);
    if (s.ok() && (bits < 2 || bits > 8)) {
      s = absl::InvalidArgumentError(
          absl::StrCat("bits must be from 2 to 8, got ", bits));
    }
    mid_rise = with_mask;
    if (s.ok() && !with_mask) s = ctx->GetAttr("mid_rise", &mid_rise);
    return s;
  }

  int64_t StreamBytes(absl::Span<const int64_t> dims) const {
    return FixedRateCoding::StreamBytes(Ranked(dims));
  }
  bool HasCentres(absl::Span<const int64_t> dims) const {
    return FixedRateCoding::HasCentres(Ranked(dims));
  }

  struct Encoded {
    std::vector<XlaOp> parts;
    XlaOp scales;  // f32, one a group
  };

  // step: of a scale of 1; that of a group is a multiple of it, by the smallest
  // scale that its values fit in. The error is at most half of it. NaN is coded
  // as the centre, as the smallest value where a mask is kept; so are negative
  // values there. centres: f32, where HasCentres.
  Encoded Encode(XlaOp x, XlaOp step, XlaOp seed, const XlaOp* centres) const {
    const std::vector<int64_t> dims = Ranked(Dims(x));
    const ScaleGroups groups(dims);
    XlaOp values = xla::Reshape(F32(x), dims);
    const XlaOp largest = centres == nullptr ? groups.Reach(values)
                                             : groups.Reach(values, *centres);
    const XlaOp scale_codes =
        GroupScale::CodeFor(largest / (step * Scalar(x, reach())));
    const XlaOp scales = GroupScale::Of(scale_codes);
    const Groups packed(dims, kPacked);
    const XlaOp inverse =
        Split(packed, groups.Spread(Scalar(x, 1) / (step * scales)));
    values = Split(packed, values);
    std::vector<XlaOp> parts = {{}, scale_codes};
    if (centres != nullptr) {
      values = values - Split(packed, ScaleGroups::OfChannels(*centres, dims));
      parts.push_back(CentreCode(*centres));
    }
    parts[0] = Words(Code(values, inverse, Dither(seed, Dims(values))), packed);
    return {parts, scales};
  }

  // parts: those of the stream, and the seed.
  XlaOp Decode(const std::vector<XlaOp>& parts, absl::Span<const int64_t> shape,
               XlaOp step) const {
    const std::vector<int64_t> dims = Ranked(shape);
    const Groups packed(dims, kPacked);
    const XlaOp codes = Codes(parts[0], packed);
    const XlaOp steps = Split(
        packed, ScaleGroups(dims).Spread(GroupScale::Of(parts[1]) * step));
    const XlaOp offset = Dither(parts.back(), Dims(codes));
    const XlaOp level = F32(codes) - (offset + Scalar(step, zero_level()));
    XlaOp x_hat = level * steps;
    if (mid_rise) {
      x_hat = xla::Select(xla::Eq(codes, xla::ZerosLike(codes)),
                          xla::ZerosLike(x_hat), x_hat);
    } else if (HasCentres(dims)) {
      x_hat = x_hat +
              Split(packed, ScaleGroups::OfChannels(CentreOf(parts[2]), dims));
    }
    return xla::Reshape(packed.Values(x_hat), shape);
  }

  // Where values are not zero, of a stream that keeps the mask.
  XlaOp Mask(const std::vector<XlaOp>& parts,
             absl::Span<const int64_t> shape) const {
    const Groups packed(Ranked(shape), kPacked);
    const XlaOp codes = Codes(parts[0], packed);
    return xla::Reshape(packed.Values(xla::Ne(codes, xla::ZerosLike(codes))),
                        shape);
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
  std::vector<XlaOp> Parts(XlaOp stream,
                           absl::Span<const int64_t> shape) const {
    const std::vector<int64_t> dims = Ranked(shape);
    const Groups packed(dims, kPacked);
    const ScaleGroups groups(dims);
    int64_t at = 0;
    auto next = [&](std::vector<int64_t> of, int bytes,
                    xla::PrimitiveType type) {
      if (bytes > 1) of.push_back(bytes);
      const int64_t from = at;
      at += TensorShape(of).num_elements();
      return xla::BitcastConvertType(
          xla::Reshape(xla::SliceInDim(stream, from, at, 1, 0), of), type);
    };
    std::vector<XlaOp> parts = {next(packed.SpreadDims({bits}), 4, xla::U32),
                                next(groups.dims(), 1, xla::U8)};
    if (HasCentres(dims)) parts.push_back(next({dims.back()}, 2, xla::U16));
    return parts;
  }

 private:
  static constexpr float kNoFraction = 0x1p23f;

  // u32. Rounded by an addition that leaves no bits below the point: XLA's CPU
  // compiler makes slow loops of conversions.
  XlaOp Code(XlaOp x, XlaOp inverse_step, XlaOp offset) const {
    const XlaOp level = x * inverse_step + (offset + Scalar(x, zero_level()));
    // Of NaN: the least that is not zero, or a middle one.
    const XlaOp known = xla::Select(xla::Eq(level, level), level,
                                    xla::FullLike(level, code_of_nan()));
    const XlaOp code = xla::BitcastConvertType(
        xla::Clamp(Scalar(x, mid_rise), known, Scalar(x, last_code())) +
            Scalar(x, kNoFraction),
        xla::U32);
    const XlaOp whole = xla::And(code, xla::FullLike(code, last_code()));
    return mid_rise ? xla::Select(IsZero(x), xla::ZerosLike(whole), whole)
                    : whole;
  }

  // What all values have, by members, where packing is elementwise: reshaped
  // behind the arithmetic XLA's CPU compiler makes slow loops of it.
  static XlaOp Split(const Groups& packed, XlaOp x) {
    return packed.Split(x, ZeroOf(x));
  }

  // Of scalars, vectors of one.
  static std::vector<int64_t> Ranked(absl::Span<const int64_t> dims) {
    if (dims.empty()) return {1};
    return {dims.begin(), dims.end()};
  }
  // The bits along a dimension before the axis of groups combined.
  static XlaOp AllBits(const Groups& groups, int place, XlaOp x) {
    return xla::Reduce(x, ZeroOf(x),
                       xla::CreateScalarOrComputation(xla::U32, x.builder()),
                       {groups.axis + place});
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
        xla::SliceInDim(codes, bits * n, kPacked, 1, groups.axis), 0, bits);
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
