// GradientStats for a Device, which has the function
//   static absl::Status Measure(ctx, dy, stats);   // 3 floats, see
//   GradientStats
#ifndef TF_COMPTRAIN_CC_KERNELS_STATISTICS_OPS_H_
#define TF_COMPTRAIN_CC_KERNELS_STATISTICS_OPS_H_

#include "cc/kernels/common/util.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {

// `enabled` and `previous`, on every device.
inline absl::Status CheckStatsInputs(const tensorflow::TensorShape& enabled,
                                     const tensorflow::TensorShape& previous) {
  const absl::Status s =
      CheckShape("enabled", enabled, tensorflow::TensorShape(), "a scalar");
  if (!s.ok()) return s;
  return CheckShape("previous", previous, tensorflow::TensorShape({3}),
                    "zeros or the stats of an earlier call");
}

template <class Device>
class GradientStatsOp : public tensorflow::OpKernel {
 public:
  using tensorflow::OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override {
    const tensorflow::Tensor& dy = ctx->input(0);
    const tensorflow::Tensor& previous = ctx->input(2);
    OP_REQUIRES_OK(ctx,
                   CheckStatsInputs(ctx->input(1).shape(), previous.shape()));
    if (!ctx->input(1).scalar<bool>()() || dy.NumElements() == 0) {
      ctx->set_output(0, previous);
      return;
    }
    tensorflow::Tensor* stats = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, tensorflow::TensorShape({3}), &stats));
    OP_REQUIRES_OK(ctx, Device::Measure(ctx, dy, stats->flat<float>().data()));
  }
};

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_KERNELS_STATISTICS_OPS_H_
