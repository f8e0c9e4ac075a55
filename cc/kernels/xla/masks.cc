// Masks and positions: StreamMaskGrad, Bitmask, MaxPool and their gradients.
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cc/kernels/masks/pool_attrs.h"
#include "cc/kernels/xla/calls.h"
#include "cc/kernels/xla/codec_calls.h"
#include "cc/kernels/xla/fence.h"

namespace comptrain::hlo {
namespace {

class StreamMaskGradXla : public Lowering {
 public:
  explicit StreamMaskGradXla(OpKernelConstruction* ctx) : Lowering(ctx) {
    OP_REQUIRES_OK(ctx, rate_.Read(ctx, /*with_mask=*/true));
  }
  void Compile(XlaOpKernelContext* ctx) override {
    std::vector<XlaOp> dy = {ctx->Input(1)};
    OP_REQUIRES_OK(ctx, CheckStream(ctx, rate_, Dims(dy[0])));
    for (int i = 2; i < ctx->num_inputs(); ++i) {
      OP_REQUIRES_OK(ctx, CheckShape("dy", ShapeOf(ctx, i), ShapeOf(ctx, 1),
                                     "that of the others"));
      if (i == 2) {
        dy.push_back(ctx->Input(i));
      } else {
        dy[1] = dy[1] + ctx->Input(i);
      }
    }
    ctx->SetOutput(
        0, Size(dy[0]) == 0
               ? dy[0]
               : CodecCalls(on_cpu_, rate_).MaskGradient(ctx->Input(0), dy));
  }

 private:
  FixedRate rate_;
};

class BitmaskXla : public Lowering {
 public:
  explicit BitmaskXla(OpKernelConstruction* ctx) : Lowering(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("lower", &lower_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("upper", &upper_));
  }
  void Compile(XlaOpKernelContext* ctx) override {
    const XlaOp x = ctx->Input(0), values = F32(x);
    const XlaOp inside = xla::And(xla::Gt(values, Scalar(x, lower_)),
                                  xla::Lt(values, Scalar(x, upper_)));
    ctx->SetOutput(0, x);
    ctx->SetOutput(1, Fence(on_cpu_, {Packing(Dims(x), 1).Pack(inside)})[0]);
  }

 private:
  float lower_, upper_;
};

class BitmaskGradXla : public Lowering {
 public:
  explicit BitmaskGradXla(OpKernelConstruction* ctx) : Lowering(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("on", &on_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("off", &off_));
  }
  // dy where a bit is set, times `on`; elsewhere times `off`.
  void Compile(XlaOpKernelContext* ctx) override {
    XlaOp dy = ctx->Input(1);
    const Packing packing(Dims(dy), 1);
    OP_REQUIRES_OK(ctx, CheckPacked("bits", ctx, packing));
    const XlaOp bits =
        packing.Unpack(GatedWith(on_cpu_, {ctx->Input(0)}, &dy)[0]);
    const XlaOp set =
        xla::Reshape(xla::Ne(bits, xla::ZerosLike(bits)), Dims(dy));
    auto times = [&](float factor) {
      if (factor == 1) return dy;
      if (factor == 0) return xla::ZerosLike(dy);
      return dy * xla::FullLike(dy, factor);
    };
    ctx->SetOutput(0, xla::Select(set, times(on_), times(off_)));
  }

 private:
  float on_, off_;
};

// As PoolShapeOf in call_arguments.h reads them.
std::string Attributes(const PoolShape& p) {
  std::vector<int64_t> numbers = {p.batch, p.channels};
  for (const int64_t* of :
       {p.in_size, p.out_size, p.window, p.stride, p.pad_before}) {
    numbers.insert(numbers.end(), of, of + 3);
  }
  return absl::StrFormat("pool = array<i64: %s>", absl::StrJoin(numbers, ", "));
}

class PoolXla : public Lowering {
 public:
  explicit PoolXla(OpKernelConstruction* ctx) : Lowering(ctx) {
    OP_REQUIRES_OK(ctx, attrs_.Read(ctx));
  }

 protected:
  PoolAttrs attrs_;
};

class MaxPoolXla : public PoolXla {
 public:
  using PoolXla::PoolXla;

  void Compile(XlaOpKernelContext* ctx) override {
    PoolShape p;
    OP_REQUIRES_OK(ctx, attrs_.Shape(ShapeOf(ctx, 0), &p));
    const XlaOp x = ctx->Input(0);
    const auto y = xla::ShapeUtil::MakeShapeWithDescendingLayout(
        ctx->input_xla_type(0), attrs_.Output(p).dim_sizes());
    const xla::Shape index = Memory(PoolIndexBytes(p));
    const auto outputs =
        Size(x) == 0 || xla::ShapeUtil::IsZeroElementArray(y)
            ? std::vector<XlaOp>{xla::Zeros(x.builder(), y),
                                 xla::Zeros(x.builder(), index)}
            : Made({kMaxPool, Attributes(p), {x}}, {y, index});
    for (int i = 0; i < 2; ++i) ctx->SetOutput(i, outputs[i]);
  }
};

class MaxPoolGradXla : public PoolXla {
 public:
  using PoolXla::PoolXla;

  void Compile(XlaOpKernelContext* ctx) override {
    TensorShape in;
    OP_REQUIRES_OK(ctx, ctx->ConstantInputAsShape(2, &in));
    PoolShape p;
    OP_REQUIRES_OK(ctx, attrs_.Shape(in, &p));
    OP_REQUIRES_OK(ctx, CheckShape("dy", ShapeOf(ctx, 1), attrs_.Output(p),
                                   "that of the pooling output"));
    OP_REQUIRES_OK(ctx, CheckShape("index", ShapeOf(ctx, 0),
                                   TensorShape({PoolIndexBytes(p)}),
                                   "that of the positions of its maxima"));
    const XlaOp index = ctx->Input(0), dy = ctx->Input(1);
    const auto dx = xla::ShapeUtil::MakeShapeWithDescendingLayout(
        ctx->output_xla_type(0), in.dim_sizes());
    ctx->SetOutput(
        0, Size(dy) == 0
               ? xla::Zeros(dy.builder(), dx)
               : Made({kMaxPoolGradient, Attributes(p), {index, dy}}, {dx})[0]);
  }
};

COMPTRAIN_REGISTER_XLA_CODEC("StreamMaskGrad", StreamMaskGradXla)
COMPTRAIN_REGISTER_XLA("Bitmask", BitmaskXla)
COMPTRAIN_REGISTER_XLA("BitmaskGrad", BitmaskGradXla)
COMPTRAIN_REGISTER_XLA_CODEC("MaxPool", MaxPoolXla)
COMPTRAIN_REGISTER_XLA_CODEC("MaxPoolGrad", MaxPoolGradXla)

}  // namespace
}  // namespace comptrain::hlo
