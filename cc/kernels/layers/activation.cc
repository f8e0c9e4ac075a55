// CPU kernels of Gelu, Silu, TanhGelu and their gradients. Elsewhere
// TensorFlow's own operations serve.
#include "cc/codec/layers/activation.h"
#include "cc/kernels/common/register.h"
#include "cc/kernels/common/util.h"

namespace comptrain {
namespace {

template <Activation kActivation>
class ActivationOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    Activate(kActivation, Data(x), ToDType(x.dtype()), x.NumElements(),
             MutableData(y), WorkerThreads(ctx));
  }
};

template <Activation kActivation>
class ActivationGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckShape("dy", dy.shape(), x.shape(), "that of x"));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({1, 0}, 0, x.shape(), &dx));
    ActivationGradient(kActivation, TensorInOf(x), Data(dy), MutableData(dx),
                       WorkerThreads(ctx));
  }
};

using GeluOp = ActivationOp<Activation::kGelu>;
using GeluGradOp = ActivationGradOp<Activation::kGelu>;
using SiluOp = ActivationOp<Activation::kSilu>;
using SiluGradOp = ActivationGradOp<Activation::kSilu>;
using TanhGeluOp = ActivationOp<Activation::kTanhGelu>;
using TanhGeluGradOp = ActivationGradOp<Activation::kTanhGelu>;

COMPTRAIN_REGISTER("Gelu", tensorflow::DEVICE_CPU, GeluOp)
COMPTRAIN_REGISTER("GeluGrad", tensorflow::DEVICE_CPU, GeluGradOp)
COMPTRAIN_REGISTER("Silu", tensorflow::DEVICE_CPU, SiluOp)
COMPTRAIN_REGISTER("SiluGrad", tensorflow::DEVICE_CPU, SiluGradOp)
COMPTRAIN_REGISTER("TanhGelu", tensorflow::DEVICE_CPU, TanhGeluOp)
COMPTRAIN_REGISTER("TanhGeluGrad", tensorflow::DEVICE_CPU, TanhGeluGradOp)

}  // namespace
}  // namespace comptrain
