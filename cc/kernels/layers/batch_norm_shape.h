// What BatchNormGrad asks of its inputs, on every device.
#pragma once

#include "absl/strings/str_cat.h"
#include "cc/kernels/common/util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {

// Checks the shapes of dy, gamma, mean and inv_std. shape_of(i): of input i.
template <class ShapeOf>
absl::Status BatchNormChannelsOf(const ShapeOf& shape_of, int64_t* channels) {
  const TensorShape dy = shape_of(1);
  if (dy.dims() < 1 || Channels(dy) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("dy must have channels in its last dimension, got shape ",
                     dy.DebugString()));
  }
  *channels = Channels(dy);
  const char* const names[] = {"gamma", "mean", "inv_std"};
  absl::Status s;
  for (int i = 0; s.ok() && i < 3; ++i) {
    s = CheckShape(names[i], shape_of(2 + i), TensorShape({*channels}),
                   "the last dimension of dy");
  }
  return s;
}

// The outputs of BatchNormGrad on the executor; dx in the memory of dy where
// nothing else reads that.
struct BatchNormOutputs {
  int64_t channels = 0;
  Tensor *dx = nullptr, *dgamma = nullptr, *dbeta = nullptr;

  absl::Status Allocate(OpKernelContext* ctx) {
    absl::Status s = BatchNormChannelsOf(
        [ctx](int i) { return ctx->input(i).shape(); }, &channels);
    if (!s.ok()) return s;
    s = ctx->forward_input_or_allocate_output({1}, 0, ctx->input(1).shape(),
                                              &dx);
    const TensorShape vector({channels});
    if (s.ok()) s = ctx->allocate_output(1, vector, &dgamma);
    return s.ok() ? ctx->allocate_output(2, vector, &dbeta) : s;
  }
};

}  // namespace comptrain
