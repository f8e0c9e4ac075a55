// What BatchNormGrad asks of its inputs, on every device.
#ifndef TF_COMPTRAIN_CC_KERNELS_BATCH_NORM_SHAPE_H_
#define TF_COMPTRAIN_CC_KERNELS_BATCH_NORM_SHAPE_H_

#include "absl/strings/str_cat.h"
#include "cc/kernels/util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {

// Checks the shapes of dy, gamma, mean and inv_std.
inline absl::Status BatchNormChannelsOf(tensorflow::OpKernelContext* ctx,
                                        int64_t* channels) {
  const tensorflow::TensorShape& dy = ctx->input(1).shape();
  if (dy.dims() < 1 || Channels(dy) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("dy must have channels in its last dimension, got shape ",
                     dy.DebugString()));
  }
  *channels = Channels(dy);
  const char* const names[] = {"gamma", "mean", "inv_std"};
  for (int i = 0; i < 3; ++i) {
    const tensorflow::TensorShape& shape = ctx->input(2 + i).shape();
    if (shape == tensorflow::TensorShape({*channels})) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(names[i], " must have shape [", *channels,
                     "], the last dimension of dy, got ", shape.DebugString()));
  }
  return absl::OkStatus();
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_KERNELS_BATCH_NORM_SHAPE_H_
