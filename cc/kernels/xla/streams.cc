// What writes and reads a stream of a fixed rate, and waits for it: Compress,
// Decompress, BatchNormGrad and Fence.
#include <algorithm>
#include <utility>
#include <vector>

#include "cc/codec/fixed_rate/sample.h"
#include "cc/codec/stream/bound.h"
#include "cc/kernels/layers/batch_norm_shape.h"
#include "cc/kernels/stream/attrs.h"
#include "cc/kernels/xla/fence.h"
#include "cc/kernels/xla/fixed_rate.h"
#include "cc/kernels/xla/host_calls.h"
#include "cc/kernels/xla/reduction.h"

namespace comptrain::hlo {
namespace {

// A scalar that bound.h computes with.
struct Value {
  XlaOp op;

  explicit Value(XlaOp of) : op(of) {}
};
Value operator+(Value a, Value b) { return Value(a.op + b.op); }
Value operator*(Value a, float b) { return Value(a.op * Scalar(a.op, b)); }
XlaOp IsPositive(Value v) { return xla::Gt(v.op, xla::ZerosLike(v.op)); }
Value Where(XlaOp condition, Value then, Value otherwise) {
  return Value(xla::Select(condition, then.op, otherwise.op));
}
Value AtMost(Value v, Value most) { return Value(xla::Min(v.op, most.op)); }
Value AtLeast(Value v, Value least) { return Value(xla::Max(v.op, least.op)); }
Value AtMost(Value v, float most) {
  return AtMost(v, Value(Scalar(v.op, most)));
}
Value AtLeast(Value v, float least) {
  return AtLeast(v, Value(Scalar(v.op, least)));
}

// Least bound over the largest value of the sample: scales reach 2^38 times
// that of the bound. Of the sample no more counts than this times the running
// sigma: an outlier would widen the bounds of all groups.
constexpr float kLeastOverLargest = 0x1p-33f, kLargestOverSigma = 0x1p20f;

XlaOp Sample(XlaOp x, int64_t most) {
  const std::vector<int64_t> limits = Dims(x), start(limits.size(), 0);
  return xla::Slice(x, start, limits, SampleStrides(limits, most));
}

// Of finite values.
struct SampleStatistics {
  XlaOp sigma, nonzero_ratio, largest;

  SampleStatistics(bool on_cpu, XlaOp x) {
    // Of differences from one value, since squares of large ones would cancel.
    const XlaOp off = x - FirstOf(x);
    const std::vector<XlaOp> reduced =
        Reduced(on_cpu, Groups(Dims(x), 1),
                {{off, kSum},
                 {Squared(off), kSum},
                 {F32(xla::Not(IsZero(x))), kSum},
                 {xla::Abs(x), kLargest}});
    const XlaOp count = Scalar(x, Size(x));
    const XlaOp variance = reduced[1] / count - Squared(reduced[0] / count);
    largest = reduced[3];
    // Squares of differences above 2^64 are infinite.
    sigma = xla::Select(xla::IsFinite(variance),
                        xla::Sqrt(xla::Max(variance, Scalar(x, 0))), largest);
    nonzero_ratio = reduced[2] / count;
  }
};

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
    if (on_cpu_) {
      CompileForHost(ctx);
      return;
    }
    const XlaOp sampled = FiniteOrZero(F32(Sample(x, kSample)));
    const SampleStatistics sample(on_cpu_, sampled);
    const XlaOp range = attrs_.rule.of_range ? Range(x) : Scalar(x, 0);
    const XlaOp bound = Bound(state, sample.sigma, range, sample.largest);
    const XlaOp steps = NextSteps(Field(state, kSteps));
    XlaOp centres;
    if (rate_.HasCentres(Dims(x))) centres = CentresOf(x);
    const FixedRate::Encoded encoded =
        rate_.Encode(x, StepFor(bound), DitherSeed(steps),
                     centres.valid() ? &centres : nullptr);
    // Readers of x wait for the stream: the forward pass does not run ahead.
    // And for what the state alone has of x, which else might be made when the
    // states are written, with x alive until then.
    std::vector<XlaOp> fenced = encoded.parts;
    fenced.insert(fenced.end(), {sample.nonzero_ratio, x});
    fenced = Fence(on_cpu_, fenced);
    ctx->SetOutput(0, fenced.back());
    fenced.pop_back();
    // What the law knows as zero has no error: here only what a mask keeps.
    const XlaOp nonzero_ratio = rate_.mid_rise ? fenced.back() : Scalar(x, 1);
    fenced.pop_back();
    ctx->SetOutput(1, rate_.Joined(fenced));
    const OfGroups of_groups =
        group_statistics_
            ? StatisticsOf(encoded.scales, bound)
            : OfGroups{Field(state, kWidened), Field(state, kRmsBound)};
    const XlaOp fields[kStateFields] = {
        Field(state, kBoundSet),
        bound,
        Running(Field(state, kRunningSigma), sample.sigma),
        nonzero_ratio,
        sample.sigma,
        Scalar(x, stream_bytes),
        range,
        of_groups.widened,
        of_groups.rms_bound,
        steps};
    std::vector<XlaOp> new_state;
    for (const XlaOp& field : fields) {
      new_state.push_back(xla::Reshape(field, {1}));
    }
    ctx->SetOutput(2, xla::ConcatInDim(x.builder(), new_state, 0));
  }

 private:
  // Readers of x wait for the stream here too.
  void CompileForHost(XlaOpKernelContext* ctx) const {
    const XlaOp x = ctx->Input(0);
    const HostEncoded encoded =
        EncodeOnHost({rate_, attrs_.rule, group_statistics_}, x, ctx->Input(1));
    const std::vector<XlaOp> fenced = Fence(on_cpu_, {encoded.stream, x});
    ctx->SetOutput(0, fenced[1]);
    ctx->SetOutput(1, fenced[0]);
    ctx->SetOutput(2, encoded.state);
  }

  struct OfGroups {
    XlaOp widened, rms_bound;
  };

  // XLA's GPU compiler makes one kernel of packing and of reductions of what
  // has one element a group.
  OfGroups StatisticsOf(XlaOp scales, XlaOp bound) const {
    const XlaOp of_bound = xla::FullLike(scales, kScaleOfBound);
    const std::vector<XlaOp> whole = Reduced(
        on_cpu_, Groups(Dims(scales), 1),
        {{F32(xla::Gt(scales, of_bound)), kSum}, {Squared(scales), kSum}});
    const XlaOp count = Scalar(scales, Size(scales));
    return {whole[0] / count, bound * xla::Sqrt(whole[1] / count) /
                                  Scalar(scales, kScaleOfBound)};
  }

  // Of finite values: largest less smallest.
  XlaOp Range(XlaOp x) const {
    const XlaOp values = F32(x);
    // Of differences from one value, for which the 0 of kLargest stands.
    const XlaOp off = xla::Select(xla::IsFinite(values),
                                  values - FiniteOrZero(FirstOf(values)),
                                  xla::ZerosLike(values));
    const std::vector<XlaOp> ends =
        Reduced(on_cpu_, Groups(Dims(x), 8),
                {{off, kLargest}, {xla::Neg(off), kLargest}});
    return ends[0] + ends[1];
  }

  // Absolute where the state sets one, else relative to sigma or to the range.
  // No smaller than what scales can widen to the largest value.
  XlaOp Bound(XlaOp state, XlaOp sigma, XlaOp range,
              XlaOp sample_largest) const {
    const XlaOp running = Field(state, kRunningSigma);
    const XlaOp set = Field(state, kBoundSet);
    const Value scale =
        attrs_.rule.of_range
            ? Value(range)
            : Where(IsPositive(Value(running)), Value(running), Value(sigma));
    const Value bound = Where(xla::Ne(set, xla::ZerosLike(set)), Value(set),
                              RelativeBound(scale, attrs_.rule.relative_bound));
    const Value largest =
        Where(IsPositive(Value(running)),
              AtMost(Value(sample_largest), Value(running) * kLargestOverSigma),
              Value(sample_largest));
    return AtMost(AtLeast(bound, largest * kLeastOverLargest), kLargestBound)
        .op;
  }

  static XlaOp NextSteps(XlaOp steps) {
    const XlaOp next = steps + Scalar(steps, 1);
    return xla::Select(xla::Lt(next, Scalar(next, kStepsCycle)), next,
                       xla::ZerosLike(next));
  }

  // Fenced: XLA would find them anew for each value that they are taken from.
  XlaOp CentresOf(XlaOp x) const {
    const int64_t of_channels = kSampleOfChannel * Dims(x).back();
    const XlaOp sampled = Sample(x, std::max(kSample, of_channels));
    return Fence(on_cpu_, {Centres(FiniteOrZero(F32(sampled)))})[0];
  }

  XlaOp Running(XlaOp running, XlaOp now) const {
    return RunningValue(Value(running), Value(now), attrs_.rule.decay).op;
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
    const xla::PrimitiveType type = ctx->output_xla_type(0);
    if (on_cpu_ && shape.num_elements() > 0) {
      const XlaOp stream =
          Gated(on_cpu_, {ctx->Input(0)}, ctx->Input(2)).front();
      ctx->SetOutput(0, DecodeOnHost(rate_, stream, ctx->Input(3),
                                     xla::ShapeUtil::MakeShape(type, dims)));
      return;
    }
    std::vector<XlaOp> parts = rate_.Parts(ctx->Input(0), dims);
    parts.push_back(SeedOf(ctx->Input(3)));
    parts = Gated(on_cpu_, parts, ctx->Input(2));
    const XlaOp x_hat = rate_.Decode(parts, dims, StepOf(ctx->Input(3)));
    ctx->SetOutput(0, xla::ConvertElementType(x_hat, type));
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
    XlaOp gate = ctx->Input(1);
    const std::vector<int64_t> dims = Dims(gate);
    OP_REQUIRES_OK(ctx, CheckStream(ctx, rate_, dims));
    if (on_cpu_ && Size(gate) > 0) {
      CompileForHost(ctx);
      return;
    }
    const int64_t last = dims.size() - 1;
    auto by_channel = [&](XlaOp vector) {
      return xla::BroadcastInDim(vector, dims, {last});
    };
    std::vector<XlaOp> parts = rate_.Parts(ctx->Input(0), dims);
    parts.push_back(SeedOf(ctx->Input(5)));
    parts = GatedWith(on_cpu_, parts, &gate);
    const XlaOp dy = F32(gate);
    const XlaOp x_hat = rate_.Decode(parts, dims, StepOf(ctx->Input(5)));
    const XlaOp gamma = ctx->Input(2), inv_std = ctx->Input(4);
    const XlaOp x_norm =
        (x_hat - by_channel(ctx->Input(3))) * by_channel(inv_std);
    const XlaOp dbeta = SumPixels(dy), dgamma = SumPixels(dy * x_norm);
    const XlaOp pixels = xla::FullLike(
        dbeta, static_cast<float>(std::max<int64_t>(1, Size(dy) / channels)));
    const XlaOp dx =
        by_channel(gamma * inv_std) * (dy - by_channel(dbeta / pixels) -
                                       x_norm * by_channel(dgamma / pixels));
    ctx->SetOutput(0, xla::ConvertElementType(dx, ctx->output_xla_type(0)));
    ctx->SetOutput(1, dgamma);
    ctx->SetOutput(2, dbeta);
  }

 private:
  void CompileForHost(XlaOpKernelContext* ctx) const {
    XlaOp dy = ctx->Input(1);
    const XlaOp stream = GatedWith(on_cpu_, {ctx->Input(0)}, &dy).front();
    const std::vector<XlaOp> gradients = BatchNormGradientOnHost(
        rate_, {stream, ctx->Input(5), dy, ctx->Input(2), ctx->Input(3),
                ctx->Input(4)});
    for (int i = 0; i < 3; ++i) ctx->SetOutput(i, gradients[i]);
  }

  static XlaOp SumPixels(XlaOp x) {
    std::vector<int64_t> all(Dims(x).size() - 1);
    for (size_t d = 0; d < all.size(); ++d) all[d] = d;
    return xla::Reduce(x, Scalar(x, 0),
                       xla::CreateScalarAddComputation(xla::F32, x.builder()),
                       all);
  }

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

COMPTRAIN_REGISTER_XLA("Compress", CompressXla)
COMPTRAIN_REGISTER_XLA("Decompress", DecompressXla)
COMPTRAIN_REGISTER_XLA("BatchNormGrad", BatchNormGradXla)
REGISTER_KERNEL_BUILDER(Name("Comptrain>Fence").Device(kCpuCompiler), FenceXla);
REGISTER_KERNEL_BUILDER(Name("Comptrain>Fence").Device(kGpuCompiler), FenceXla);

}  // namespace
}  // namespace comptrain::hlo
