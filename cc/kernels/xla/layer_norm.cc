// Layer normalization: formulas that XLA fuses, as
// cc/codec/layers/layer_norm.h has them.
#include <numeric>
#include <vector>

#include "cc/codec/layers/layer_norm.h"
#include "cc/kernels/xla/lowering.h"

namespace comptrain::hlo {
namespace {

// A tensor with its last dimension apart.
class LastDimension {
 public:
  explicit LastDimension(XlaOp of) : dims_(Dims(of)), rows_(dims_.size() - 1) {
    std::iota(rows_.begin(), rows_.end(), 0);
  }

  // Of one value a row, over all of it.
  XlaOp OverRows(XlaOp rows) const {
    return xla::BroadcastInDim(rows, dims_, rows_);
  }
  // Of one value a channel.
  XlaOp OverChannels(XlaOp channels) const {
    return xla::BroadcastInDim(channels, dims_, {last()});
  }
  // [rows]
  XlaOp Mean(XlaOp x) const {
    const XlaOp sum = Sum(x, {last()});
    return sum / xla::FullLike(sum, static_cast<float>(dims_.back()));
  }
  // [channels]
  XlaOp SumOfRows(XlaOp x) const { return Sum(x, rows_); }
  XlaOp Centred(XlaOp x) const { return x - OverRows(Mean(x)); }

 private:
  int64_t last() const { return static_cast<int64_t>(dims_.size()) - 1; }
  static XlaOp Sum(XlaOp x, const std::vector<int64_t>& over) {
    xla::XlaBuilder* b = x.builder();
    return xla::Reduce(x, xla::Zero(b, xla::F32),
                       xla::CreateScalarAddComputation(xla::F32, b), over);
  }

  const std::vector<int64_t> dims_;
  std::vector<int64_t> rows_;
};

absl::Status CheckVector(const char* name, XlaOpKernelContext* ctx, int input) {
  const TensorShape x = ShapeOf(ctx, 0);
  if (x.dims() == 0) return absl::InvalidArgumentError("x must have a rank");
  return CheckShape(name, ShapeOf(ctx, input),
                    TensorShape({x.dim_size(x.dims() - 1)}),
                    "the last dimension of x");
}

class LayerNormXla : public Lowering {
 public:
  explicit LayerNormXla(OpKernelConstruction* ctx) : Lowering(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
  }

  void Compile(XlaOpKernelContext* ctx) override {
    const XlaOp x = ctx->Input(0);
    OP_REQUIRES(ctx, ShapeOf(ctx, 0).dims() > 0,
                absl::InvalidArgumentError("x must have a rank"));
    const LastDimension last(x);
    const XlaOp centred = last.Centred(F32(x));
    const XlaOp variance = last.Mean(Squared(centred));
    const XlaOp inv_std =
        xla::Rsqrt(variance + xla::FullLike(variance, epsilon_));
    const XlaOp x_norm = centred * last.OverRows(inv_std);
    ctx->SetOutput(0, xla::ConvertElementType(x_norm, ctx->output_xla_type(0)));
    ctx->SetOutput(1, inv_std);
  }

 private:
  float epsilon_ = 0;
};

class LayerNormAffineXla : public Lowering {
 public:
  using Lowering::Lowering;

  void Compile(XlaOpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckVector("gamma", ctx, 1));
    OP_REQUIRES_OK(ctx, CheckVector("beta", ctx, 2));
    const LastDimension last(ctx->Input(0));
    const XlaOp y = F32(ctx->Input(0)) * last.OverChannels(ctx->Input(1)) +
                    last.OverChannels(ctx->Input(2));
    ctx->SetOutput(0, xla::ConvertElementType(y, ctx->output_xla_type(0)));
  }
};

class LayerNormGradXla : public Lowering {
 public:
  using Lowering::Lowering;

  void Compile(XlaOpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckShape("dy", ShapeOf(ctx, 1), ShapeOf(ctx, 0),
                                   "that of x_norm"));
    OP_REQUIRES_OK(ctx, CheckVector("gamma", ctx, 2));
    TensorShape rows = ShapeOf(ctx, 0);
    rows.RemoveLastDims(1);
    OP_REQUIRES_OK(ctx, CheckShape("inv_std", ShapeOf(ctx, 3), rows,
                                   "all but the last dimension of x_norm"));
    const LastDimension last(ctx->Input(0));
    const XlaOp dy = F32(ctx->Input(1));
    const XlaOp inv_std = last.OverRows(ctx->Input(3));
    XlaOp x_norm = F32(ctx->Input(0));
    const XlaOp square = last.Mean(Squared(x_norm));
    const XlaOp most = xla::FullLike(square, kMostSquareOfNorm);
    const XlaOp left = xla::Select(xla::Gt(square, most), most / square,
                                   xla::FullLike(square, 1));
    x_norm = x_norm * last.OverRows(left);
    const XlaOp g = dy * last.OverChannels(ctx->Input(2));
    const XlaOp dx = inv_std * (last.Centred(g) -
                                x_norm * last.OverRows(last.Mean(g * x_norm)));
    ctx->SetOutput(0, xla::ConvertElementType(dx, ctx->output_xla_type(0)));
    ctx->SetOutput(1, last.SumOfRows(dy * x_norm));
    ctx->SetOutput(2, last.SumOfRows(dy));
  }
};

COMPTRAIN_REGISTER_XLA("LayerNorm", LayerNormXla)
COMPTRAIN_REGISTER_XLA("LayerNormAffine", LayerNormAffineXla)
COMPTRAIN_REGISTER_XLA("LayerNormGrad", LayerNormGradXla)

}  // namespace
}  // namespace comptrain::hlo
