// The fixed-rate codec: quantization in a number of bits that is known when a
// step is compiled.
#ifndef TF_COMPTRAIN_CC_KERNELS_XLA_FIXED_RATE_H_
#define TF_COMPTRAIN_CC_KERNELS_XLA_FIXED_RATE_H_

#include "cc/codec/stream/bound.h"
#include "cc/kernels/xla/lowering.h"

namespace comptrain {
namespace hlo {

inline XlaOp Field(XlaOp state, StateField field) {
  return xla::Reshape(xla::SliceInDim(state, field, field + 1, 1, 0), {});
}

// Of a stream whose bound is in the state.
inline XlaOp StepOf(XlaOp state) {
  return Field(state, kBoundUsed) * Scalar(state, kStepOverBound);
}

inline absl::Status CheckBits(int bits) {
  if (bits == 2 || bits == 3 || bits == 4 || bits == 6 || bits == 8) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("bits must be 2, 3, 4, 6 or 8, got ", bits));
}

struct FixedRate {
  int bits = 8;
  bool mid_rise = false;

  absl::Status Read(OpKernelConstruction* ctx) {
    absl::Status s = ctx->GetAttr("bits", &bits);
    if (s.ok()) s = CheckBits(bits);
    if (s.ok()) s = ctx->GetAttr("mid_rise", &mid_rise);
    return s;
  }

  // Codes count from the most negative one, unless the mask is kept: then zero
  // is code 0, and all others are positive.
  int zero_code() const { return mid_rise ? 0 : 1 << (bits - 1); }
  int levels() const {
    return mid_rise ? (1 << bits) - 1 : (1 << (bits - 1)) - 1;
  }

  struct Encoded {
    XlaOp codes, saturated;
  };

  // x: f32. The error is at most step / 2 wherever `saturated` is false. NaN is
  // saturated, and coded as zero; as the smallest value where a mask is kept.
  Encoded Encode(XlaOp x, XlaOp step) const {
    const XlaOp t = x * (Scalar(x, 1) / step);
    if (mid_rise) {
      const XlaOp code = xla::Clamp(Scalar(x, 1), xla::Floor(t) + Scalar(x, 1),
                                    Scalar(x, levels()));
      const XlaOp fits =
          xla::And(xla::Ge(t, Scalar(x, 0)), xla::Le(t, Scalar(x, levels())));
      return {ToInt(xla::Select(IsZero(x), xla::ZerosLike(x), Finite(code, 1))),
              xla::Not(xla::Or(fits, IsZero(x)))};
    }
    const XlaOp code = xla::Clamp(
        Scalar(x, -levels()), xla::RoundNearestEven(t), Scalar(x, levels()));
    const XlaOp fits = xla::Le(xla::Abs(t), Scalar(x, levels() + 0.5f));
    return {ToInt(Finite(code, 0) + Scalar(x, zero_code())), xla::Not(fits)};
  }

  XlaOp Decode(XlaOp codes, XlaOp step) const {
    const XlaOp code = F32(codes);
    if (!mid_rise) return (code - Scalar(code, zero_code())) * step;
    return xla::Select(xla::Eq(code, Scalar(code, 0)), xla::ZerosLike(code),
                       (code - Scalar(code, 0.5f)) * step);
  }

 private:
  static XlaOp Finite(XlaOp code, float otherwise) {
    return xla::Select(xla::Eq(code, code), code,
                       xla::FullLike(code, otherwise));
  }
  static XlaOp ToInt(XlaOp code) {
    return xla::ConvertElementType(code, xla::U8);
  }
};

}  // namespace hlo
}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_KERNELS_XLA_FIXED_RATE_H_
