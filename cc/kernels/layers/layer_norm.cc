// CPU kernels of LayerNorm and LayerNormGrad; cc/kernels/xla/layer_norm.cc has
// those of XLA. On a GPU's executor Keras' formula serves.
#include "cc/codec/layers/layer_norm.h"
#include "cc/kernels/common/register.h"
#include "cc/kernels/common/util.h"

namespace comptrain {
namespace {

absl::Status CheckVector(const Tensor& vector, const Tensor& x,
                         const char* name) {
  return CheckShape(name, vector.shape(), TensorShape({Channels(x.shape())}),
                    "the last dimension of x");
}

TensorShape RowsShape(const Tensor& x) {
  TensorShape rows = x.shape();
  rows.RemoveLastDims(1);
  return rows;
}

NormRows RowsOf(const Tensor& x) {
  return {Data(x), ToDType(x.dtype()), RowsShape(x).num_elements(),
          Channels(x.shape())};
}

struct Epsilon {
  float value;
  absl::Status Read(OpKernelConstruction* ctx) {
    return ctx->GetAttr("epsilon", &value);
  }
};

class LayerNormOp : public OpWithAttrs<Epsilon> {
 public:
  using OpWithAttrs::OpWithAttrs;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    OP_REQUIRES_OK(ctx, CheckVector(ctx->input(1), x, "gamma"));
    OP_REQUIRES_OK(ctx, CheckVector(ctx->input(2), x, "beta"));
    Tensor *y = nullptr, *inv_std = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, RowsShape(x), &inv_std));
    LayerNorm(RowsOf(x),
              {ctx->input(1).flat<float>().data(),
               ctx->input(2).flat<float>().data(), attrs_.value},
              {MutableData(y), inv_std->flat<float>().data()},
              WorkerThreads(ctx));
  }
};

class LayerNormGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    const Tensor& gamma = ctx->input(2);
    const Tensor& inv_std = ctx->input(3);
    OP_REQUIRES_OK(ctx, CheckShape("dy", dy.shape(), x.shape(), "that of x"));
    OP_REQUIRES_OK(ctx, CheckVector(gamma, x, "gamma"));
    OP_REQUIRES_OK(ctx, CheckShape("inv_std", inv_std.shape(), RowsShape(x),
                                   "all but the last dimension of x"));
    Tensor *dx = nullptr, *dgamma = nullptr, *dbeta = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({1, 0}, 0, x.shape(), &dx));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, gamma.shape(), &dgamma));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, gamma.shape(), &dbeta));
    LayerNormGradient(
        RowsOf(x), {gamma.flat<float>().data(), inv_std.flat<float>().data()},
        Data(dy),
        {MutableData(dx), dgamma->flat<float>().data(),
         dbeta->flat<float>().data()},
        WorkerThreads(ctx));
  }
};

COMPTRAIN_REGISTER("LayerNorm", tensorflow::DEVICE_CPU, LayerNormOp)
COMPTRAIN_REGISTER("LayerNormGrad", tensorflow::DEVICE_CPU, LayerNormGradOp)

}  // namespace
}  // namespace comptrain
