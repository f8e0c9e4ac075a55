// CPU kernel of SoftmaxGrad. Elsewhere TensorFlow's own operations serve.
#include "cc/codec/layers/softmax.h"
#include "cc/kernels/common/register.h"
#include "cc/kernels/common/util.h"

namespace comptrain {
namespace {

class SoftmaxGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& y = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckShape("dy", dy.shape(), y.shape(), "that of y"));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({1, 0}, 0, y.shape(), &dx));
    const int64_t channels = Channels(y.shape());
    const int64_t rows = channels == 0 ? 0 : y.NumElements() / channels;
    SoftmaxGradient({Data(y), ToDType(y.dtype()), rows, channels}, Data(dy),
                    MutableData(dx), WorkerThreads(ctx));
  }
};

COMPTRAIN_REGISTER("SoftmaxGrad", tensorflow::DEVICE_CPU, SoftmaxGradOp)

}  // namespace
}  // namespace comptrain
