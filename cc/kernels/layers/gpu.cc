// GPU kernel of BatchNormGrad: validates, allocates, calls cc/codec.
#include "cc/codec/layers/batch_norm_gpu.h"
#include "cc/codec/registry/gpu.h"
#include "cc/kernels/common/gpu.h"
#include "cc/kernels/common/register.h"
#include "cc/kernels/layers/batch_norm_shape.h"
#include "cc/kernels/stream/gpu_reader.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class GpuBatchNormGradOp : public GpuReaderOp {
 public:
  using GpuReaderOp::GpuReaderOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& dy = ctx->input(1);
    int64_t channels = 0;
    OP_REQUIRES_OK(ctx, BatchNormChannelsOf(ctx, &channels));
    GpuEncoded from;
    OP_REQUIRES_OK(ctx, Open(ctx, dy.dtype(), dy.shape(), &from));
    CUstream_st* const cuda_stream = CudaStream(ctx);

    Tensor x_hat;
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(dy.dtype(), dy.shape(), &x_hat));
    OP_REQUIRES_OK(ctx, ToAbsl(GpuDecode(codec(), from, MutableData(&x_hat),
                                         cuda_stream)));
    Tensor* dx = nullptr;
    Tensor* dgamma = nullptr;
    Tensor* dbeta = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({1}, 0, dy.shape(), &dx));
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(1, TensorShape({channels}), &dgamma));
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(2, TensorShape({channels}), &dbeta));
    Tensor scratch;
    OP_REQUIRES_OK(
        ctx, AllocateScratch(ctx, GpuBatchNormScratchBytes(from.n, channels),
                             &scratch));
    OP_REQUIRES_OK(
        ctx, ToAbsl(GpuBatchNormGradient(
                 Data(x_hat), from.dtype, from.n, channels, Data(dy),
                 ctx->input(2).flat<float>().data(),
                 ctx->input(3).flat<float>().data(),
                 ctx->input(4).flat<float>().data(), MutableData(&scratch),
                 MutableData(dx), dgamma->flat<float>().data(),
                 dbeta->flat<float>().data(), cuda_stream)));
  }
};

COMPTRAIN_REGISTER("BatchNormGrad", tensorflow::DEVICE_GPU, GpuBatchNormGradOp,
                   .HostMemory("state"))

}  // namespace
}  // namespace comptrain
