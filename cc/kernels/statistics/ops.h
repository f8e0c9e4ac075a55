// GradientStats for a Device, which has the function
//   static absl::Status Measure(ctx, dy, stats);   // 3 floats, see
//   GradientStats
#pragma once

#include "cc/kernels/common/util.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {

// `enabled` and `previous`, on every device.
inline absl::Status CheckStatsInputs(const TensorShape& enabled,
                                     const TensorShape& previous) {
  const absl::Status s =
      CheckShape("enabled", enabled, TensorShape(), "a scalar");
  if (!s.ok()) return s;
  return CheckShape("previous", previous, TensorShape({3}),
                    "zeros or the stats of an earlier call");
}

template <class Device>
class GradientStatsOp : public OpKernel {
 public:
  using tensorflow::OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& dy = ctx->input(0);
    const Tensor& previous = ctx->input(2);
    OP_REQUIRES_OK(ctx,
                   CheckStatsInputs(ctx->input(1).shape(), previous.shape()));
    if (!ctx->input(1).scalar<bool>()() || dy.NumElements() == 0) {
      ctx->set_output(0, previous);
      return;
    }
    Tensor* stats = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({3}), &stats));
    OP_REQUIRES_OK(ctx, Device::Measure(ctx, dy, stats->flat<float>().data()));
  }
};

}  // namespace comptrain
