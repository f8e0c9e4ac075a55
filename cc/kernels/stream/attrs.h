// What Compress reads from its attributes, and asks of its state, on every
// device.
#pragma once

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc/codec/registry/codec.h"
#include "cc/codec/stream/bound.h"
#include "cc/kernels/common/util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace comptrain {

// The codec named by an attribute; "auto" where the op chooses.
inline absl::Status ReadCodec(OpKernelConstruction* ctx, CodecId* codec,
                              bool* is_auto) {
  std::string name;
  const absl::Status s = ctx->GetAttr("codec", &name);
  if (!s.ok()) return s;
  *is_auto = name == "auto";
  if (!*is_auto && !CodecFromName(name, codec)) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec must be the name of a codec, got '", name, "'"));
  }
  return absl::OkStatus();
}

inline absl::Status CheckState(const TensorShape& shape) {
  return CheckShape("state", shape, TensorShape({kStateFields}),
                    "zeros or the new_state of an earlier call");
}

struct CompressAttrs {
  BoundRule rule;
  bool mid_rise = false, dither = false, row_scales = false;
  bool is_auto = false;
  CodecId codec = CodecId::kPlane;

  absl::Status Read(OpKernelConstruction* ctx) {
    std::string relative_to;
    absl::Status s = ReadCodec(ctx, &codec, &is_auto);
    if (s.ok()) s = ctx->GetAttr("relative_bound", &rule.relative_bound);
    if (s.ok()) s = ctx->GetAttr("relative_to", &relative_to);
    if (s.ok()) s = ctx->GetAttr("decay", &rule.decay);
    if (s.ok()) s = ctx->GetAttr("mid_rise", &mid_rise);
    if (s.ok()) s = ctx->GetAttr("dither", &dither);
    if (s.ok()) s = ctx->GetAttr("row_scales", &row_scales);
    if (!s.ok()) return s;
    rule.of_range = relative_to == "range";
    rule.by_channel = relative_to == "sigma";
    rule.lossless = !is_auto && IsLossless(codec);
    if (!(std::isnormal(rule.relative_bound) && rule.relative_bound > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("relative_bound must be a positive normal number, got ",
                       rule.relative_bound));
    }
    if (!(rule.decay >= 0 && rule.decay < 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("decay must be in [0, 1), got ", rule.decay));
    }
    return absl::OkStatus();
  }

  // All but the bound and the scales.
  EncodeParams Params(const Tensor& x, const float* state) const {
    EncodeParams params;
    params.dtype = ToDType(x.dtype());
    params.n = x.NumElements();
    params.channels = params.n == 0 ? 1 : Channels(x.shape());
    params.width = Width(x.shape());
    params.mid_rise = mid_rise;
    params.dither = dither;
    params.seed = SeedOf(state);
    return params;
  }
};

// Of a tensor of n values.
inline double NonzeroRatio(int64_t nonzero, int64_t n) {
  return n == 0 ? 0 : static_cast<double>(nonzero) / static_cast<double>(n);
}

// Compress on any device.
class CompressOpBase : public OpWithAttrs<CompressAttrs> {
 public:
  using OpWithAttrs::OpWithAttrs;
  void Compute(OpKernelContext* ctx) final {
    const Tensor& state = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckState(state.shape()));
    const float* const of_state = state.flat<float>().data();
    Compress(ctx, ctx->input(0), of_state,
             attrs_.Params(ctx->input(0), of_state));
  }

 protected:
  // params: all but the bound.
  virtual void Compress(OpKernelContext* ctx, const Tensor& x,
                        const float* state, EncodeParams params) const = 0;
};

// Whether StreamMaskGrad has a single dy, as it must outside XLA.
inline absl::Status CheckOneGradient(const OpKernelContext* ctx) {
  if (ctx->num_inputs() == 2) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("dy must be one gradient, except under XLA, got ",
                   ctx->num_inputs() - 1, ": add them up first"));
}

}  // namespace comptrain
