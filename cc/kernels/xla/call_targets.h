// By which names XLA finds the calls of codec_calls.h: registered for "Host"
// (host_calls.cc) and, in a library with GPU kernels, for "CUDA" (gpu.cc).
#pragma once

namespace comptrain::hlo {

constexpr char kEncode[] = "comptrain_fixed_rate_encode";
constexpr char kDecode[] = "comptrain_fixed_rate_decode";
constexpr char kMaskGradient[] = "comptrain_fixed_rate_mask_gradient";
constexpr char kBatchNormGradient[] =
    "comptrain_fixed_rate_batch_norm_gradient";

}  // namespace comptrain::hlo
