// CPU kernels of LayerNorm and LayerNormGrad. Elsewhere Keras' formula serves.
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

int64_t Rows(const Tensor& x) {
  const int64_t channels = Channels(x.shape());
  return channels == 0 ? 0 : x.NumElements() / channels;
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
    Tensor* y = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    LayerNorm({Data(x), ToDType(x.dtype()), Rows(x), Channels(x.shape())},
              {ctx->input(1).flat<float>().data(),
               ctx->input(2).flat<float>().data(), attrs_.value},
              MutableData(y), WorkerThreads(ctx));
  }
};

class LayerNormGradOp : public OpWithAttrs<Epsilon> {
 public:
  using OpWithAttrs::OpWithAttrs;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    const Tensor& gamma = ctx->input(2);
    OP_REQUIRES_OK(ctx, CheckShape("dy", dy.shape(), x.shape(), "that of x"));
    OP_REQUIRES_OK(ctx, CheckVector(gamma, x, "gamma"));
    Tensor *dx = nullptr, *dgamma = nullptr, *dbeta = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({1, 0}, 0, x.shape(), &dx));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, gamma.shape(), &dgamma));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, gamma.shape(), &dbeta));
    LayerNormGradient(
        {Data(x), ToDType(x.dtype()), Rows(x), Channels(x.shape())},
        {gamma.flat<float>().data(), nullptr, attrs_.value}, Data(dy),
        {MutableData(dx), dgamma->flat<float>().data(),
         dbeta->flat<float>().data()},
        WorkerThreads(ctx));
  }
};

COMPTRAIN_REGISTER("LayerNorm", tensorflow::DEVICE_CPU, LayerNormOp)
COMPTRAIN_REGISTER("LayerNormGrad", tensorflow::DEVICE_CPU, LayerNormGradOp)

}  // namespace
}  // namespace comptrain
