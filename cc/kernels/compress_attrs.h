// What Compress reads from its attributes and its state, and writes to the
// latter, on every device.
#ifndef TF_COMPTRAIN_CC_KERNELS_COMPRESS_ATTRS_H_
#define TF_COMPTRAIN_CC_KERNELS_COMPRESS_ATTRS_H_

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc/codec/codec.h"
#include "cc/kernels/state.h"
#include "cc/kernels/util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace comptrain {

// The codec named by an attribute; "auto" where the op chooses.
inline absl::Status ReadCodec(tensorflow::OpKernelConstruction* ctx,
                              CodecId* codec, bool* is_auto) {
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

struct CompressAttrs {
  float relative_bound = 0, decay = 0;
  bool mid_rise = false, dither = false;
  bool of_range = false;
  bool is_auto = false;
  CodecId codec = CodecId::kPlane;

  absl::Status Read(tensorflow::OpKernelConstruction* ctx) {
    std::string relative_to;
    absl::Status s = ReadCodec(ctx, &codec, &is_auto);
    if (s.ok()) s = ctx->GetAttr("relative_bound", &relative_bound);
    if (s.ok()) s = ctx->GetAttr("relative_to", &relative_to);
    if (s.ok()) s = ctx->GetAttr("decay", &decay);
    if (s.ok()) s = ctx->GetAttr("mid_rise", &mid_rise);
    if (s.ok()) s = ctx->GetAttr("dither", &dither);
    if (!s.ok()) return s;
    of_range = relative_to == "range";
    if (!(std::isnormal(relative_bound) && relative_bound > 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "relative_bound must be a positive normal number, got ",
          relative_bound));
    }
    if (!(decay >= 0 && decay < 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("decay must be in [0, 1), got ", decay));
    }
    return absl::OkStatus();
  }

  // All but the bound.
  EncodeParams Params(const tensorflow::Tensor& x) const {
    EncodeParams params;
    params.dtype = ToDType(x.dtype());
    params.n = x.NumElements();
    params.channels = params.n == 0 ? 1 : Channels(x.shape());
    // Pixels from one to the one above it, where there are images.
    const int rank = x.dims();
    params.width = rank >= 4 ? x.shape().dim_size(rank - 2) : 0;
    params.mid_rise = mid_rise;
    params.dither = dither;
    return params;
  }

  bool lossless() const { return !is_auto && IsLossless(codec); }

  // Whether the bound is relative to the sigma of x itself: at the first step.
  bool NeedsSigma(const float* state) const {
    return !lossless() && !of_range && state[kBoundSet] == 0 &&
           !(state[kRunningSigma] > 0);
  }

  // The bound, or 0 without loss. range: of x, read where of_range. sigma(): of
  // x, where NeedsSigma.
  template <class Sigma>
  float Bound(const float* state, double range, const Sigma& sigma) const {
    if (lossless()) return 0;
    if (state[kBoundSet] != 0) return state[kBoundSet];
    const double scale = of_range            ? range
                         : NeedsSigma(state) ? sigma()
                                             : state[kRunningSigma];
    return static_cast<float>(std::clamp<double>(
        relative_bound * scale, kSmallestBound, kLargestBound));
  }

  void NextState(const float* state, const EncodeParams& params,
                 const PlaneStats& stats, double range, int64_t stream_bytes,
                 float* next) const {
    const double n = static_cast<double>(params.n);
    double sigma = 0;
    if (n > 0) {
      const double mean = stats.sum / n;
      sigma = std::sqrt(std::max(0.0, stats.sum_sq / n - mean * mean));
    }
    const double running = state[kRunningSigma];
    next[kBoundSet] = state[kBoundSet];
    next[kBoundUsed] = params.eb;
    next[kRunningSigma] =
        running > 0 ? decay * running +
                          (1 - decay) * std::min(sigma, kLargestJump * running)
                    : sigma;
    next[kNonzeroRatio] =
        n == 0 ? 0 : static_cast<double>(stats.nonzero) / n;
    next[kSigma] = sigma;
    next[kStreamBytes] = stream_bytes;
    next[kRange] = range;
    next[kSaturated] = state[kSaturated];
    next[kRunningRange] = state[kRunningRange];
  }
};

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_KERNELS_COMPRESS_ATTRS_H_
