// What BatchNormGrad asks of its inputs, on every device.
#ifndef TF_COMPTRAIN_CC_KERNELS_LAYERS_BATCH_NORM_SHAPE_H_
#define TF_COMPTRAIN_CC_KERNELS_LAYERS_BATCH_NORM_SHAPE_H_

#include "absl/strings/str_cat.h"
#include "cc/kernels/common/util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {

// Checks the shapes of dy, gamma, mean and inv_std. shape_of(i): of input i.
template <class ShapeOf>
absl::Status BatchNormChannelsOf(const ShapeOf& shape_of, int64_t* channels) {
  const tensorflow::TensorShape dy = shape_of(1);
  if (dy.dims() < 1 || Channels(dy) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("dy must have channels in its last dimension, got shape ",
                     dy.DebugString()));
  }
  *channels = Channels(dy);
  const char* const names[] = {"gamma", "mean", "inv_std"};
  absl::Status s;
  for (int i = 0; s.ok() && i < 3; ++i) {
    s = CheckShape(names[i], shape_of(2 + i),
                   tensorflow::TensorShape({*channels}),
                   "the last dimension of dy");
  }
  return s;
}

inline absl::Status BatchNormChannelsOf(tensorflow::OpKernelContext* ctx,
                                        int64_t* channels) {
  return BatchNormChannelsOf([ctx](int i) { return ctx->input(i).shape(); },
                             channels);
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_KERNELS_LAYERS_BATCH_NORM_SHAPE_H_
