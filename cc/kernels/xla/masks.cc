// Masks and positions: StreamMaskGrad, Bitmask, MaxPool and their gradients.
#include <vector>

#include "cc/kernels/masks/pool_attrs.h"
#include "cc/kernels/xla/codec_calls.h"
#include "cc/kernels/xla/fence.h"
#include "cc/kernels/xla/rate.h"

namespace comptrain::hlo {
namespace {

class StreamMaskGradXla : public Lowering {
 public:
  explicit StreamMaskGradXla(OpKernelConstruction* ctx) : Lowering(ctx) {
    OP_REQUIRES_OK(ctx, rate_.Read(ctx, /*with_mask=*/true));
  }
  void Compile(XlaOpKernelContext* ctx) override {
    const XlaOp dy = ctx->Input(1);
    OP_REQUIRES_OK(ctx, CheckStream(ctx, rate_, Dims(dy)));
    ctx->SetOutput(
        0, Size(dy) == 0
               ? dy
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

// Positions of a pooling window are told apart by unrolled comparisons.
constexpr int kMaxWindow = 64;

class PoolXla : public Lowering {
 public:
  explicit PoolXla(OpKernelConstruction* ctx) : Lowering(ctx) {
    OP_REQUIRES_OK(ctx, attrs_.Read(ctx));
    for (int k : attrs_.ksize) window_ *= k;
    OP_REQUIRES(ctx, window_ <= kMaxWindow,
                absl::UnimplementedError(
                    absl::StrCat("XLA: the pooling window has ", window_,
                                 " positions, more than ", kMaxWindow)));
  }

 protected:
  int bits() const {
    return window_ <= 2 ? 1 : window_ <= 4 ? 2 : window_ <= 16 ? 4 : 8;
  }
  int rank() const { return attrs_.ksize.size(); }

  // Offset of a position, row-major, along each spatial dimension.
  std::vector<int64_t> Offsets(int position) const {
    std::vector<int64_t> offsets(rank());
    for (int d = rank() - 1; d >= 0; --d) {
      offsets[d] = position % attrs_.ksize[d];
      position /= attrs_.ksize[d];
    }
    return offsets;
  }

  PoolAttrs attrs_;
  int window_ = 1;
};

class MaxPoolXla : public PoolXla {
 public:
  using PoolXla::PoolXla;

  void Compile(XlaOpKernelContext* ctx) override {
    PoolShape p;
    XlaOp x = ctx->Input(0);
    OP_REQUIRES_OK(ctx, attrs_.Shape(ShapeOf(ctx, 0), &p));
    xla::XlaBuilder* b = x.builder();
    const TensorShape out = attrs_.Output(p);
    const Packing packing(out.dim_sizes(), bits());
    if (out.num_elements() == 0) {
      ctx->SetOutput(0, Zeros(b, ctx->input_xla_type(0), out.dim_sizes()));
      ctx->SetOutput(1, Zeros(b, xla::U8, packing.bytes.group_dims()));
      return;
    }
    const int first = 3 - rank();  // PoolShape counts from three dimensions
    xla::PaddingConfig padding = xla::MakeNoPaddingConfig(rank() + 2);
    for (int d = 0; d < rank(); ++d) {
      const int s = first + d;
      const int64_t needed = (p.out_size[s] - 1) * p.stride[s] + p.window[s];
      auto* of = padding.mutable_dimensions(d + 1);
      of->set_edge_padding_low(p.pad_before[s]);
      of->set_edge_padding_high(needed - p.pad_before[s] - p.in_size[s]);
    }
    x = xla::Pad(x, xla::MinValue(b, ctx->input_xla_type(0)), padding);
    XlaOp y, index;
    for (int position = 0; position < window_; ++position) {
      const std::vector<int64_t> offsets = Offsets(position);
      std::vector<int64_t> start = {0}, limit = {p.batch}, stride = {1};
      for (int d = 0; d < rank(); ++d) {
        const int s = first + d;
        start.push_back(offsets[d]);
        limit.push_back(offsets[d] + (p.out_size[s] - 1) * p.stride[s] + 1);
        stride.push_back(p.stride[s]);
      }
      start.push_back(0);
      limit.push_back(p.channels);
      stride.push_back(1);
      const XlaOp v = xla::Slice(x, start, limit, stride);
      const XlaOp here =
          xla::Broadcast(xla::ConstantR0<uint8_t>(b, position), Dims(v));
      if (position == 0) {
        y = v;
        index = here;
        continue;
      }
      // The first of equals and the first NaN stay.
      const XlaOp beats = xla::And(xla::Not(xla::Le(v, y)), xla::Eq(y, y));
      y = xla::Select(beats, v, y);
      index = xla::Select(beats, here, index);
    }
    ctx->SetOutput(0, y);
    ctx->SetOutput(1, Fence(on_cpu_, {packing.Pack(index)})[0]);
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
    const TensorShape out = attrs_.Output(p);
    OP_REQUIRES_OK(ctx, CheckShape("dy", ShapeOf(ctx, 1), out,
                                   "that of the pooling output"));
    const Packing packing(out.dim_sizes(), bits());
    OP_REQUIRES_OK(ctx, CheckPacked("index", ctx, packing));
    const XlaOp dy = F32(ctx->Input(1));
    if (out.num_elements() == 0) {
      ctx->SetOutput(
          0, Zeros(dy.builder(), ctx->output_xla_type(0), in.dim_sizes()));
      return;
    }
    const XlaOp index =
        packing.Unpack(Gated(on_cpu_, {ctx->Input(0)}, ctx->Input(1))[0]);
    const int first = 3 - rank();
    XlaOp dx;
    for (int position = 0; position < window_; ++position) {
      const std::vector<int64_t> offsets = Offsets(position);
      xla::PaddingConfig spread = xla::MakeNoPaddingConfig(rank() + 2);
      for (int d = 0; d < rank(); ++d) {
        const int s = first + d;
        const int64_t low = offsets[d] - p.pad_before[s];
        const int64_t length = (p.out_size[s] - 1) * p.stride[s] + 1;
        auto* of = spread.mutable_dimensions(d + 1);
        of->set_edge_padding_low(low);
        of->set_interior_padding(p.stride[s] - 1);
        of->set_edge_padding_high(p.in_size[s] - low - length);
      }
      const XlaOp won =
          xla::Select(xla::Eq(index, xla::FullLike(index, position)), dy,
                      xla::ZerosLike(dy));
      const XlaOp part = xla::Pad(won, Scalar(dy, 0), spread);
      dx = position == 0 ? part : dx + part;
    }
    ctx->SetOutput(0, xla::ConvertElementType(dx, ctx->output_xla_type(0)));
  }
};

COMPTRAIN_REGISTER_XLA_CODEC("StreamMaskGrad", StreamMaskGradXla)
COMPTRAIN_REGISTER_XLA("Bitmask", BitmaskXla)
COMPTRAIN_REGISTER_XLA("BitmaskGrad", BitmaskGradXla)
COMPTRAIN_REGISTER_XLA("MaxPool", MaxPoolXla)
COMPTRAIN_REGISTER_XLA("MaxPoolGrad", MaxPoolGradXla)

}  // namespace
}  // namespace comptrain::hlo
