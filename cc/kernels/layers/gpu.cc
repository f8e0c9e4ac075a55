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

class GpuBatchNormGradOp : public GpuReaderOp {
 public:
  using GpuReaderOp::GpuReaderOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& dy = ctx->input(1);
    BatchNormOutputs to;
    OP_REQUIRES_OK(ctx, to.Allocate(ctx));
    GpuEncoded from;
    OP_REQUIRES_OK(ctx, Open(ctx, dy.dtype(), dy.shape(), &from));
    CUstream_st* const cuda_stream = CudaStream(ctx);

    Tensor x_hat;
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(dy.dtype(), dy.shape(), &x_hat));
    OP_REQUIRES_OK(ctx, ToAbsl(GpuDecode(codec(), from, MutableData(&x_hat),
                                         cuda_stream)));
    Tensor scratch;
    OP_REQUIRES_OK(
        ctx, AllocateScratch(ctx, GpuBatchNormScratchBytes(from.n, to.channels),
                             &scratch));
    OP_REQUIRES_OK(ctx,
                   ToAbsl(GpuBatchNormGradient(
                       {Data(x_hat), from.dtype, from.n}, Data(dy),
                       {to.channels, ctx->input(2).flat<float>().data(),
                        ctx->input(3).flat<float>().data(),
                        ctx->input(4).flat<float>().data()},
                       MutableData(&scratch),
                       {MutableData(to.dx), to.dgamma->flat<float>().data(),
                        to.dbeta->flat<float>().data()},
                       cuda_stream)));
  }
};

COMPTRAIN_REGISTER("BatchNormGrad", tensorflow::DEVICE_GPU, GpuBatchNormGradOp,
                   .HostMemory("state"))

}  // namespace
}  // namespace comptrain
