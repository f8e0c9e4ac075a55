// GradientStats for a Device, which has the function
//   static absl::Status Measure(ctx, dy, stats);   // 3 floats, see GradientStats
#ifndef TF_COMPTRAIN_CC_KERNELS_MEASURE_KERNELS_H_
#define TF_COMPTRAIN_CC_KERNELS_MEASURE_KERNELS_H_

#include "absl/strings/str_cat.h"
#include "cc/kernels/util.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {

template <class Device>
class GradientStatsOp : public tensorflow::OpKernel {
 public:
  using tensorflow::OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override {
    const tensorflow::Tensor& dy = ctx->input(0);
    const tensorflow::Tensor& previous = ctx->input(2);
    OP_REQUIRES(ctx, previous.NumElements() == 3,
                absl::InvalidArgumentError(
                    absl::StrCat("previous must have 3 elements, got ",
                                 previous.NumElements())));
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

#endif  // TF_COMPTRAIN_CC_KERNELS_MEASURE_KERNELS_H_
