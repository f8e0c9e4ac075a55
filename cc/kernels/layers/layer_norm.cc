// CPU kernels of layer normalization; cc/kernels/xla/layer_norm.cc has
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
    Tensor *x_norm = nullptr, *inv_std = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({0}, 0, x.shape(), &x_norm));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, RowsShape(x), &inv_std));
    LayerNorm(RowsOf(x), attrs_.value,
              {MutableData(x_norm), inv_std->flat<float>().data()},
              WorkerThreads(ctx));
  }
};

class LayerNormAffineOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x_norm = ctx->input(0);
    OP_REQUIRES_OK(ctx, CheckVector(ctx->input(1), x_norm, "gamma"));
    OP_REQUIRES_OK(ctx, CheckVector(ctx->input(2), x_norm, "beta"));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({0}, 0, x_norm.shape(), &y));
    LayerNormAffine(RowsOf(x_norm),
                    {ctx->input(1).flat<float>().data(),
                     ctx->input(2).flat<float>().data()},
                    MutableData(y), WorkerThreads(ctx));
  }
};

class LayerNormGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x_norm = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    const Tensor& gamma = ctx->input(2);
    const Tensor& inv_std = ctx->input(3);
    OP_REQUIRES_OK(
        ctx, CheckShape("dy", dy.shape(), x_norm.shape(), "that of x_norm"));
    OP_REQUIRES_OK(ctx, CheckVector(gamma, x_norm, "gamma"));
    OP_REQUIRES_OK(ctx,
                   CheckShape("inv_std", inv_std.shape(), RowsShape(x_norm),
                              "all but the last dimension of x_norm"));
    Tensor *dx = nullptr, *dgamma = nullptr, *dbeta = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output(
                            {1, 0}, 0, x_norm.shape(), &dx));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, gamma.shape(), &dgamma));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, gamma.shape(), &dbeta));
    LayerNormGradient(
        RowsOf(x_norm),
        {gamma.flat<float>().data(), inv_std.flat<float>().data()}, Data(dy),
        {MutableData(dx), dgamma->flat<float>().data(),
         dbeta->flat<float>().data()},
        WorkerThreads(ctx));
  }
};

COMPTRAIN_REGISTER("LayerNorm", tensorflow::DEVICE_CPU, LayerNormOp)
COMPTRAIN_REGISTER("LayerNormAffine", tensorflow::DEVICE_CPU, LayerNormAffineOp)
COMPTRAIN_REGISTER("LayerNormGrad", tensorflow::DEVICE_CPU, LayerNormGradOp)

}  // namespace
}  // namespace comptrain
