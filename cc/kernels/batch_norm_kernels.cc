// CPU kernel of BatchNormGrad: validates, allocates, calls cc/codec.
#include "cc/codec/batch_norm.h"
#include "cc/kernels/batch_norm_shape.h"
#include "cc/kernels/util.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class BatchNormGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& stream = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    int64_t channels = 0;
    OP_REQUIRES_OK(ctx, BatchNormChannelsOf(ctx, &channels));
    Tensor* dx = nullptr;
    Tensor* dgamma = nullptr;
    Tensor* dbeta = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output(
                            {1}, 0, dy.shape(), &dx));
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(1, TensorShape({channels}), &dgamma));
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(2, TensorShape({channels}), &dbeta));
    BatchNormChannels of;
    of.channels = channels;
    of.gamma = ctx->input(2).flat<float>().data();
    of.mean = ctx->input(3).flat<float>().data();
    of.inv_std = ctx->input(4).flat<float>().data();
    OP_REQUIRES_OK(
        ctx, ToAbsl(BatchNormGradient(
                 stream.flat<uint8_t>().data(), stream.NumElements(),
                 ToDType(dy.dtype()), dy.NumElements(), Data(dy), of,
                 MutableData(dx), dgamma->flat<float>().data(),
                 dbeta->flat<float>().data(), WorkerThreads(ctx))));
  }
};

#define REGISTER(T)                                         \
  REGISTER_KERNEL_BUILDER(Name("Comptrain>BatchNormGrad")   \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("T"),      \
                          BatchNormGradOp);
REGISTER(float)
REGISTER(Eigen::bfloat16)
REGISTER(Eigen::half)
#undef REGISTER

}  // namespace
}  // namespace comptrain
