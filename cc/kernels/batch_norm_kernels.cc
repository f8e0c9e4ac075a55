// CPU kernel of BatchNormGrad: validates, allocates, calls cc/codec.
#include "absl/strings/str_cat.h"
#include "cc/codec/batch_norm.h"
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
    OP_REQUIRES(ctx, dy.dims() >= 1 && Channels(dy.shape()) >= 1,
                absl::InvalidArgumentError(absl::StrCat(
                    "dy must have channels in its last dimension, got shape ",
                    dy.shape().DebugString())));
    const int64_t channels = Channels(dy.shape());
    const char* const names[] = {"gamma", "mean", "inv_std"};
    for (int i = 0; i < 3; ++i) {
      const TensorShape& shape = ctx->input(2 + i).shape();
      OP_REQUIRES(ctx, shape == TensorShape({channels}),
                  absl::InvalidArgumentError(absl::StrCat(
                      names[i], " must have shape [", channels,
                      "], the last dimension of dy, got ",
                      shape.DebugString())));
    }
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
