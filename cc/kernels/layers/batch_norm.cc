// CPU kernel of BatchNormGrad: validates, allocates, calls cc/codec.
#include "cc/codec/layers/batch_norm.h"
#include "cc/codec/registry/codec.h"
#include "cc/kernels/layers/batch_norm_shape.h"
#include "cc/kernels/common/register.h"
#include "cc/kernels/common/util.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {
namespace {

class BatchNormGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& stream = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    BatchNormOutputs to;
    OP_REQUIRES_OK(ctx, to.Allocate(ctx));
    BatchNormChannels of;
    of.channels = to.channels;
    of.gamma = ctx->input(2).flat<float>().data();
    of.mean = ctx->input(3).flat<float>().data();
    of.inv_std = ctx->input(4).flat<float>().data();
    const StreamIn held = StreamInOf(stream, dy);
    const NormGradients out = {MutableData(to.dx),
                               to.dgamma->flat<float>().data(),
                               to.dbeta->flat<float>().data()};
    const ParallelFor threads = WorkerThreads(ctx);
    if (StreamCodec(held.data, held.bytes) == CodecId::kPlane) {
      OP_REQUIRES_OK(
          ctx, ToAbsl(BatchNormGradient(held, Data(dy), of, out, threads)));
      return;
    }
    Tensor x_hat;
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(dy.dtype(), dy.shape(), &x_hat));
    OP_REQUIRES_OK(ctx,
                   ToAbsl(DecodeStream(held, MutableData(&x_hat), threads)));
    OP_REQUIRES_OK(ctx, ToAbsl(BatchNormGradientOf(TensorInOf(x_hat), Data(dy),
                                                   of, out, threads)));
  }
};

COMPTRAIN_REGISTER("BatchNormGrad", tensorflow::DEVICE_CPU, BatchNormGradOp)

}  // namespace
}  // namespace comptrain
