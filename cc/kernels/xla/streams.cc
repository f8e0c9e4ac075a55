// What writes and reads a stream of a fixed rate, and waits for it: Compress,
// Decompress, BatchNormGrad and Fence.
#include <vector>

#include "cc/kernels/layers/batch_norm_shape.h"
#include "cc/kernels/stream/attrs.h"
#include "cc/kernels/xla/codec_calls.h"
#include "cc/kernels/xla/fence.h"
#include "cc/kernels/xla/row_scales.h"

namespace comptrain::hlo {
namespace {

class CompressXla : public Lowering {
 public:
  explicit CompressXla(OpKernelConstruction* ctx) : Lowering(ctx) {
    OP_REQUIRES_OK(ctx, rate_.Read(ctx));
    OP_REQUIRES_OK(ctx, attrs_.Read(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("group_statistics", &group_statistics_));
    OP_REQUIRES(ctx, !attrs_.rule.lossless,
                absl::UnimplementedError(
                    "codec 'zvc' is lossless: its streams have no static size, "
                    "which XLA needs. Use 'plane', or jit_compile=False."));
  }

  void Compile(XlaOpKernelContext* ctx) override {
    const XlaOp x = ctx->Input(0), state = ctx->Input(1);
    OP_REQUIRES_OK(ctx, CheckState(ShapeOf(ctx, 1)));
    const int64_t stream_bytes = rate_.StreamBytes(Dims(x));
    if (Size(x) == 0) {
      ctx->SetOutput(0, x);
      ctx->SetOutput(1, Zeros(x.builder(), xla::U8, {stream_bytes}));
      ctx->SetOutput(2, state);
      return;
    }
    const Encoded encoded = Encode(x, state);
    // Readers of x wait for the stream: the forward pass does not run ahead.
    const std::vector<XlaOp> fenced = Fence(on_cpu_, {encoded.stream, x});
    ctx->SetOutput(0, fenced[1]);
    ctx->SetOutput(1, fenced[0]);
    ctx->SetOutput(2, encoded.state);
  }

 private:
  Encoded Encode(XlaOp x, XlaOp state) const {
    const CodecCalls calls(on_cpu_, rate_);
    const Encoding how = {attrs_.rule, group_statistics_};
    if (on_cpu_ || !rate_.row_scales) return calls.Encode(how, x, state);
    const RowScalesOnGpu rows = RowScalesOnGpu::Of(x);
    Encoded encoded = calls.Encode(how, rows.Divide(x), state);
    const auto at = static_cast<int32_t>(rate_.RowsAt(Dims(x)));
    encoded.stream =
        xla::DynamicUpdateSlice(encoded.stream, rows.bytes(),
                                {xla::ConstantR0<int32_t>(x.builder(), at)});
    if (group_statistics_) {
      const XlaOp rms =
          xla::Slice(encoded.state, {kRmsBound}, {kRmsBound + 1}, {1});
      encoded.state = xla::DynamicUpdateSlice(
          encoded.state, rms * rows.Rms(),
          {xla::ConstantR0<int32_t>(x.builder(), kRmsBound)});
    }
    return encoded;
  }

  FixedRate rate_;
  CompressAttrs attrs_;
  bool group_statistics_ = true;
};

class DecompressXla : public Lowering {
 public:
  explicit DecompressXla(OpKernelConstruction* ctx) : Lowering(ctx) {
    OP_REQUIRES_OK(ctx, rate_.Read(ctx));
  }

  void Compile(XlaOpKernelContext* ctx) override {
    TensorShape shape;
    OP_REQUIRES_OK(ctx, ctx->ConstantInputAsShape(1, &shape));
    const auto dims = shape.dim_sizes();
    OP_REQUIRES_OK(ctx, CheckStream(ctx, rate_, dims));
    OP_REQUIRES_OK(ctx, CheckState(ShapeOf(ctx, 3)));
    const auto of = xla::ShapeUtil::MakeShape(ctx->output_xla_type(0), dims);
    if (shape.num_elements() == 0) {
      ctx->SetOutput(0, Zeros(ctx->builder(), of.element_type(), dims));
      return;
    }
    const XlaOp stream = ctx->Input(0);
    const XlaOp x = CodecCalls(on_cpu_, rate_)
                        .Decode(stream, ctx->Input(3), ctx->Input(2), of);
    if (on_cpu_ || !rate_.row_scales) {
      ctx->SetOutput(0, x);
      return;
    }
    const int64_t end = Size(stream);
    const int64_t rows = rate_.RowBytes({dims.begin(), dims.end()});
    const XlaOp bytes = xla::Slice(stream, {end - rows}, {end}, {1});
    // Several readers would multiply each for itself, beside one that needs
    // the product in memory.
    ctx->SetOutput(
        0, Fence(on_cpu_, {RowScalesOnGpu::Read(bytes, dims).Multiply(x)})[0]);
  }

 private:
  FixedRate rate_;
};

class BatchNormGradXla : public Lowering {
 public:
  explicit BatchNormGradXla(OpKernelConstruction* ctx) : Lowering(ctx) {
    OP_REQUIRES_OK(ctx, rate_.Read(ctx));
  }

  void Compile(XlaOpKernelContext* ctx) override {
    int64_t channels = 0;
    OP_REQUIRES_OK(ctx, BatchNormChannelsOf(
                            [&](int i) { return ShapeOf(ctx, i); }, &channels));
    OP_REQUIRES_OK(ctx, CheckState(ShapeOf(ctx, 5)));
    const XlaOp dy = ctx->Input(1);
    OP_REQUIRES_OK(ctx, CheckStream(ctx, rate_, Dims(dy)));
    if (Size(dy) == 0) {
      ctx->SetOutput(0, dy);
      ctx->SetOutput(1, xla::ZerosLike(ctx->Input(2)));
      ctx->SetOutput(2, xla::ZerosLike(ctx->Input(2)));
      return;
    }
    const std::vector<XlaOp> gradients =
        CodecCalls(on_cpu_, rate_)
            .BatchNormGradient({ctx->Input(0), ctx->Input(5), dy, ctx->Input(2),
                                ctx->Input(3), ctx->Input(4)});
    for (int i = 0; i < 3; ++i) ctx->SetOutput(i, gradients[i]);
  }

 private:
  FixedRate rate_;
};

class FenceXla : public Lowering {
 public:
  using Lowering::Lowering;

  void Compile(XlaOpKernelContext* ctx) override {
    std::vector<XlaOp> values;
    for (int i = 0; i < ctx->num_inputs(); ++i) values.push_back(ctx->Input(i));
    values = Fence(on_cpu_, values);
    for (int i = 0; i < ctx->num_inputs(); ++i) ctx->SetOutput(i, values[i]);
  }
};

COMPTRAIN_REGISTER_XLA_CODEC("Compress", CompressXla)
COMPTRAIN_REGISTER_XLA_CODEC("Decompress", DecompressXla)
COMPTRAIN_REGISTER_XLA_CODEC("BatchNormGrad", BatchNormGradXla)
REGISTER_KERNEL_BUILDER(Name("Comptrain>Fence").Device(kCpuCompiler), FenceXla);
REGISTER_KERNEL_BUILDER(Name("Comptrain>Fence").Device(kGpuCompiler), FenceXla);

}  // namespace
}  // namespace comptrain::hlo
