// XLA lowerings of the ops, for its CPU and GPU compilers.
//
// Registered as kernels of XLA's compilation devices. REGISTER_XLA_OP would not
// do: its kernels are registered once, when the first op or model of the process
// is made, and this library is loaded later.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/kernels/batch_norm_shape.h"
#include "cc/kernels/compress_attrs.h"
#include "cc/kernels/fixed_rate_xla.h"
#include "cc/kernels/measure_kernels.h"
#include "cc/kernels/pool_attrs.h"
#include "cc/kernels/register.h"
#include "cc/kernels/state.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/service/custom_call_status.h"
#include "xla/service/custom_call_target_registry.h"

namespace comptrain {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;
using tensorflow::XlaOpKernel;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

// Positions of a pooling window are told apart by unrolled comparisons.
constexpr int kMaxWindow = 64;
constexpr char kCpuCompiler[] = "XLA_CPU_JIT", kGpuCompiler[] = "XLA_GPU_JIT";
// Of a tensor that is sampled for its standard deviation.
constexpr int64_t kSample = 1 << 16;
// As in the streams of the executor: rounding stays within the bound.
constexpr float kStepOverBound = 2 * (1 - 1.0f / 8192);
// Over the running range, where the bound follows it.
constexpr float kHeadroom = 1.25f;

XlaOp F32(XlaOp x) { return xla::ConvertElementType(x, xla::F32); }
XlaOp Scalar(XlaOp like, float value) {
  return xla::ConstantR0<float>(like.builder(), value);
}
XlaOp Field(XlaOp state, StateField field) {
  return xla::Reshape(xla::SliceInDim(state, field, field + 1, 1, 0), {});
}
std::vector<int64_t> Dims(XlaOp x) {
  const xla::Shape shape = x.builder()->GetShape(x).value();
  return {shape.dimensions().begin(), shape.dimensions().end()};
}
XlaOp Zeros(xla::XlaBuilder* builder, xla::PrimitiveType type,
            absl::Span<const int64_t> dims) {
  return xla::Broadcast(xla::Zero(builder, type), dims);
}
TensorShape ShapeOf(XlaOpKernelContext* ctx, int input) {
  return TensorShape(Dims(ctx->Input(input)));
}
int64_t Size(XlaOp x) {
  return xla::ShapeUtil::ElementsIn(*x.builder()->GetShape(x));
}
XlaOp Squared(XlaOp x) { return x * x; }
// x, f32, with zeros for NaN and infinities.
XlaOp FiniteOrZero(XlaOp x) {
  return xla::Select(xla::IsFinite(x), x, xla::ZerosLike(x));
}
XlaOp Magnitude(XlaOp x) { return xla::Abs(FiniteOrZero(x)); }

enum Reduction { kSum, kLargest };  // kLargest: or 0

// All elements of each operand reduced: operands are f32, of one shape, and folded
// first. A sum counts exactly below 2^24. In one pass, except on the CPU, whose
// compiler has vector code for one operand only.
std::vector<XlaOp> Reduced(
    bool on_cpu, const Packing& fold,
    const std::vector<std::pair<XlaOp, Reduction>>& operands) {
  const int n = operands.size();
  std::vector<XlaOp> reduced;
  if (on_cpu && n > 1) {
    for (const auto& operand : operands) {
      reduced.push_back(Reduced(on_cpu, fold, {operand})[0]);
    }
    return reduced;
  }
  xla::XlaBuilder* b = operands[0].first.builder();
  const std::unique_ptr<xla::XlaBuilder> combine = b->CreateSubBuilder("reduced");
  const xla::Shape scalar = xla::ShapeUtil::MakeShape(xla::F32, {});
  std::vector<XlaOp> before, now, combined, folded;
  for (int i = 0; i < 2 * n; ++i) {
    (i < n ? before : now)
        .push_back(xla::Parameter(combine.get(), i, scalar, absl::StrCat("p", i)));
  }
  for (int i = 0; i < n; ++i) {
    auto two = [&](XlaOp x, XlaOp y) {
      return operands[i].second == kSum ? x + y : xla::Max(x, y);
    };
    combined.push_back(two(before[i], now[i]));
    folded.push_back(fold.Folded(operands[i].first, two));
  }
  if (n > 1) xla::Tuple(combine.get(), combined);
  std::vector<int64_t> all(Dims(folded[0]).size());
  std::iota(all.begin(), all.end(), 0);
  const XlaOp results =
      xla::Reduce(b, folded, std::vector<XlaOp>(n, xla::Zero(b, xla::F32)),
                  combine->Build().value(), all);
  if (n == 1) return {results};
  for (int i = 0; i < n; ++i) {
    reduced.push_back(xla::GetTupleElement(results, i));
  }
  return reduced;
}

XlaOp IsZero(XlaOp x) {
  return xla::Lt(xla::Abs(x), Scalar(x, std::numeric_limits<float>::min()));
}

// Every stride-th element along the largest dimensions but the last: at most
// kSample, or one of each channel.
XlaOp Sample(XlaOp x) {
  std::vector<int64_t> limits = Dims(x), start(limits.size(), 0),
                       stride(limits.size(), 1), left = limits;
  int64_t n = Size(x);
  while (n > kSample) {
    int widest = -1;
    for (int d = 0; d + 1 < static_cast<int>(left.size()); ++d) {
      if (left[d] > 1 && (widest < 0 || left[d] > left[widest])) widest = d;
    }
    if (widest < 0) break;
    n /= left[widest];
    stride[widest] *= 2;
    left[widest] = (limits[widest] + stride[widest] - 1) / stride[widest];
    n *= left[widest];
  }
  return xla::Slice(x, start, limits, stride);
}

// Of finite values.
struct SampleStatistics {
  XlaOp sigma, nonzero_ratio, largest;

  SampleStatistics(bool on_cpu, XlaOp x) {
    // Of differences from one value, since squares of large ones would cancel.
    const XlaOp off = x - FirstOf(x);
    const std::vector<XlaOp> reduced = Reduced(
        on_cpu, Packing(Dims(x), 8),
        {{off, kSum},
         {Squared(off), kSum},
         {F32(xla::Not(IsZero(x))), kSum},
         {xla::Abs(x), kLargest}});
    const XlaOp count = Scalar(x, Size(x));
    const XlaOp variance =
        reduced[1] / count - Squared(reduced[0] / count);
    largest = reduced[3];
    // Squares of differences above 2^64 are infinite.
    sigma = xla::Select(xla::IsFinite(variance),
                        xla::Sqrt(xla::Max(variance, Scalar(x, 0))), largest);
    nonzero_ratio = reduced[2] / count;
  }
};

// The first input, what Pack makes of a tensor. The builder of a computation
// would end the process when asked for the shape of what it has refused.
absl::Status CheckStream(const char* name, XlaOpKernelContext* ctx,
                         const Packing& packing) {
  return CheckShape(name, ShapeOf(ctx, 0), TensorShape(packing.stream_dims()),
                    absl::StrCat("that of ", packing.bits,
                                 " bits a value for a tensor of shape ",
                                 TensorShape(packing.dims).DebugString(),
                                 " under XLA"));
}

absl::Status CheckBits(int bits) {
  if (bits == 2 || bits == 3 || bits == 4 || bits == 6 || bits == 8) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("bits must be 2, 3, 4, 6 or 8, got ", bits));
}

// Fence's custom call: each result is its operand. opaque: sizes in bytes.
void FenceOnHost(void* out, const void** in, const char* opaque,
                 size_t opaque_bytes, XlaCustomCallStatus* /*status*/) {
  void** results = static_cast<void**>(out);
  std::istringstream sizes(std::string(opaque, opaque_bytes));
  size_t bytes;
  for (int i = 0; sizes >> bytes; ++i) {
    if (results[i] != in[i]) std::memcpy(results[i], in[i], bytes);
  }
}

const bool registered = [] {
  xla::CustomCallTargetRegistry::Global()->Register(
      kFenceTarget, reinterpret_cast<void*>(FenceOnHost), "Host");
  return true;
}();

// A lowering, and which of XLA's compilers it is for. TF_COMPTRAIN_XLA_TARGET=GPU:
// for the GPU's on any machine (benchmarks/gpu/compile_only.py).
class Lowering : public XlaOpKernel {
 public:
  explicit Lowering(OpKernelConstruction* ctx)
      : XlaOpKernel(ctx), on_cpu_(ctx->device_type() == kCpuCompiler) {
    const char* target = std::getenv("TF_COMPTRAIN_XLA_TARGET");
    if (target != nullptr && std::string(target) == "GPU") on_cpu_ = false;
  }

 protected:
  bool on_cpu_;
};

// Codec F: quantization in a fixed number of bits.
struct FixedRate {
  int bits = 8;
  bool mid_rise = false;

  absl::Status Read(OpKernelConstruction* ctx) {
    absl::Status s = ctx->GetAttr("bits", &bits);
    if (s.ok()) s = CheckBits(bits);
    if (s.ok()) s = ctx->GetAttr("mid_rise", &mid_rise);
    return s;
  }

  // Codes count from the most negative one, unless the mask is kept: then zero
  // is code 0, and all others are positive.
  int zero_code() const { return mid_rise ? 0 : 1 << (bits - 1); }
  int levels() const {
    return mid_rise ? (1 << bits) - 1 : (1 << (bits - 1)) - 1;
  }

  struct Encoded {
    XlaOp codes, saturated;
  };

  // x: f32. The error is at most step / 2 wherever `saturated` is false. NaN is
  // saturated, and coded as zero; as the smallest value where a mask is kept.
  Encoded Encode(XlaOp x, XlaOp step) const {
    const XlaOp t = x * (Scalar(x, 1) / step);
    if (mid_rise) {
      const XlaOp code = xla::Clamp(Scalar(x, 1), xla::Floor(t) + Scalar(x, 1),
                                    Scalar(x, levels()));
      const XlaOp fits =
          xla::And(xla::Ge(t, Scalar(x, 0)), xla::Le(t, Scalar(x, levels())));
      return {ToInt(xla::Select(IsZero(x), xla::ZerosLike(x), Finite(code, 1))),
              xla::Not(xla::Or(fits, IsZero(x)))};
    }
    const XlaOp code = xla::Clamp(Scalar(x, -levels()), xla::RoundNearestEven(t),
                                  Scalar(x, levels()));
    const XlaOp fits = xla::Le(xla::Abs(t), Scalar(x, levels() + 0.5f));
    return {ToInt(Finite(code, 0) + Scalar(x, zero_code())), xla::Not(fits)};
  }

  XlaOp Decode(XlaOp codes, XlaOp step) const {
    const XlaOp code = F32(codes);
    if (!mid_rise) return (code - Scalar(code, zero_code())) * step;
    return xla::Select(xla::Eq(code, Scalar(code, 0)), xla::ZerosLike(code),
                       (code - Scalar(code, 0.5f)) * step);
  }

 private:
  static XlaOp Finite(XlaOp code, float otherwise) {
    return xla::Select(xla::Eq(code, code), code,
                       xla::FullLike(code, otherwise));
  }
  static XlaOp ToInt(XlaOp code) {
    return xla::ConvertElementType(code, xla::U8);
  }
};

XlaOp StepOf(XlaOp state) {
  return Field(state, kBoundUsed) * Scalar(state, kStepOverBound);
}

class CompressXla : public Lowering {
 public:
  explicit CompressXla(OpKernelConstruction* ctx) : Lowering(ctx) {
    OP_REQUIRES_OK(ctx, rate_.Read(ctx));
    OP_REQUIRES_OK(ctx, attrs_.Read(ctx));
    OP_REQUIRES(ctx, !attrs_.lossless(),
                absl::UnimplementedError(
                    "codec 'zvc' is lossless: its streams have no static size, "
                    "which XLA needs. Use 'plane', or jit_compile=False."));
    OP_REQUIRES(ctx, !attrs_.dither,
                absl::UnimplementedError("dither has no XLA lowering. Use dither="
                                         "False, or jit_compile=False."));
  }

  void Compile(XlaOpKernelContext* ctx) override {
    const XlaOp x = ctx->Input(0), state = ctx->Input(1);
    OP_REQUIRES_OK(ctx, CheckState(ShapeOf(ctx, 1)));
    const Packing packing(Dims(x), rate_.bits);
    if (Size(x) == 0) {
      ctx->SetOutput(0, x);
      ctx->SetOutput(
          1, packing.Joined(packing.Pack(xla::ConvertElementType(x, xla::U8))));
      ctx->SetOutput(2, state);
      return;
    }
    // XLA's GPU compiler makes one kernel of packing and reductions of one shape; its
    // CPU compiler makes the folded operand of a reduction a tensor.
    const Packing fold = on_cpu_ ? Packing(Dims(x), 1) : packing;
    const XlaOp values = F32(x);
    const SampleStatistics sample(on_cpu_, FiniteOrZero(F32(Sample(x))));
    XlaOp range = Scalar(x, 0);
    if (attrs_.of_range) {
      // Of differences from one value, for which the 0 of kLargest stands.
      const XlaOp off = xla::Select(xla::IsFinite(values),
                                    values - FiniteOrZero(FirstOf(values)),
                                    xla::ZerosLike(values));
      const std::vector<XlaOp> ends = Reduced(
          on_cpu_, fold, {{off, kLargest}, {xla::Neg(off), kLargest}});
      range = ends[0] + ends[1];
    }
    const XlaOp bound = Bound(state, sample.sigma, range, sample.largest);
    const FixedRate::Encoded encoded =
        rate_.Encode(values, bound * Scalar(x, kStepOverBound));
    const std::vector<XlaOp> whole = Reduced(
        on_cpu_, fold,
        {{Magnitude(values), kLargest}, {F32(encoded.saturated), kSum}});
    const XlaOp share = whole[1] / Scalar(x, Size(x));
    const XlaOp largest = Counted(Field(state, kRunningRange), whole[0]);
    const XlaOp fields[kStateFields] = {
        Field(state, kBoundSet),
        bound,
        Running(Field(state, kRunningSigma), sample.sigma),
        sample.nonzero_ratio,
        sample.sigma,
        Scalar(x, TensorShape(packing.stream_dims()).num_elements()),
        range,
        xla::Max(Field(state, kSaturated), share),
        xla::Max(largest, Running(Field(state, kRunningRange), largest))};
    std::vector<XlaOp> new_state;
    for (const XlaOp& field : fields) {
      new_state.push_back(xla::Reshape(field, {1}));
    }
    // Readers of x wait for the stream: the forward pass does not run ahead.
    std::vector<XlaOp> fenced = packing.Pack(encoded.codes);
    fenced.push_back(x);
    fenced = Fence(on_cpu_, fenced);
    ctx->SetOutput(0, fenced.back());
    fenced.pop_back();
    ctx->SetOutput(1, packing.Joined(fenced));
    ctx->SetOutput(2, xla::ConcatInDim(x.builder(), new_state, 0));
  }

 private:
  // Absolute where the state sets one, else relative to sigma. The largest rate
  // has no larger one to change to: its bound follows the range.
  XlaOp Bound(XlaOp state, XlaOp sigma, XlaOp range, XlaOp sample_max) const {
    const XlaOp running = Field(state, kRunningSigma);
    const XlaOp set = Field(state, kBoundSet);
    const XlaOp now =
        attrs_.of_range ? range
                  : xla::Select(xla::Gt(running, xla::ZerosLike(running)),
                                running, sigma);
    XlaOp bound = xla::Select(
        xla::Ne(set, xla::ZerosLike(set)), set,
        xla::Clamp(Scalar(now, kSmallestBound),
                   now * Scalar(now, attrs_.relative_bound),
                   Scalar(now, kLargestBound)));
    if (rate_.bits == 8) {
      const XlaOp before = Field(state, kRunningRange);
      const XlaOp known = xla::Gt(before, xla::ZerosLike(before));
      const XlaOp reach = xla::Select(known, before * Scalar(before, kHeadroom),
                                      sample_max * Scalar(before, 1.5f));
      bound = xla::Min(
          xla::Max(bound, reach / Scalar(before, kStepOverBound * rate_.levels())),
          Scalar(before, kLargestBound));
    }
    return bound;
  }

  // `now` with outliers cut off, where there is a running value to judge by.
  static XlaOp Counted(XlaOp before, XlaOp now) {
    return xla::Select(xla::Gt(before, xla::ZerosLike(before)),
                       xla::Min(now, before * Scalar(now, kLargestJump)), now);
  }

  XlaOp Running(XlaOp before, XlaOp now) const {
    return xla::Select(xla::Gt(before, xla::ZerosLike(before)),
                       before * Scalar(now, attrs_.decay) +
                           Counted(before, now) * Scalar(now, 1 - attrs_.decay),
                       now);
  }

  FixedRate rate_;
  CompressAttrs attrs_;
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
    const Packing packing(dims, rate_.bits);
    OP_REQUIRES_OK(ctx, CheckStream("stream", ctx, packing));
    OP_REQUIRES_OK(ctx, CheckState(ShapeOf(ctx, 3)));
    const std::vector<XlaOp> parts =
        Gated(on_cpu_, packing.Parts(ctx->Input(0)), ctx->Input(2));
    const XlaOp x_hat =
        rate_.Decode(packing.Unpack(on_cpu_, parts), StepOf(ctx->Input(3)));
    ctx->SetOutput(0,
                   xla::Reshape(xla::ConvertElementType(
                                    x_hat, ctx->output_xla_type(0)),
                                dims));
  }

 private:
  FixedRate rate_;
};

// Sets dx: dy where a code is not zero, times `on`; elsewhere times `off`.
void MaskGradient(bool on_cpu, XlaOpKernelContext* ctx, const char* name, int bits,
                  float on, float off) {
  XlaOp dy = ctx->Input(1);
  const Packing packing(Dims(dy), bits);
  OP_REQUIRES_OK(ctx, CheckStream(name, ctx, packing));
  const XlaOp codes = packing.Unpack(
      on_cpu, GatedWith(on_cpu, packing.Parts(ctx->Input(0)), &dy));
  const XlaOp set =
      xla::Reshape(xla::Ne(codes, xla::ZerosLike(codes)), Dims(dy));
  auto times = [&](float factor) {
    if (factor == 1) return dy;
    if (factor == 0) return xla::ZerosLike(dy);
    return dy * xla::FullLike(dy, factor);
  };
  ctx->SetOutput(0, xla::Select(set, times(on), times(off)));
}

class StreamMaskGradXla : public Lowering {
 public:
  explicit StreamMaskGradXla(OpKernelConstruction* ctx) : Lowering(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("bits", &bits_));
    OP_REQUIRES_OK(ctx, CheckBits(bits_));
  }
  void Compile(XlaOpKernelContext* ctx) override {
    MaskGradient(on_cpu_, ctx, "stream", bits_, 1, 0);
  }

 private:
  int bits_;
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
    ctx->SetOutput(1, Fence(on_cpu_, Packing(Dims(x), 1).Pack(inside))[0]);
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
  void Compile(XlaOpKernelContext* ctx) override {
    MaskGradient(on_cpu_, ctx, "bits", 1, on_, off_);
  }

 private:
  float on_, off_;
};

class PoolXla : public Lowering {
 public:
  explicit PoolXla(OpKernelConstruction* ctx) : Lowering(ctx) {
    OP_REQUIRES_OK(ctx, attrs_.Read(ctx));
    for (int k : attrs_.ksize) window_ *= k;
    OP_REQUIRES(ctx, window_ <= kMaxWindow,
                absl::UnimplementedError(absl::StrCat(
                    "XLA: the pooling window has ", window_,
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
      ctx->SetOutput(1, Zeros(b, xla::U8, packing.stream_dims()));
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
      const XlaOp here = xla::Broadcast(
          xla::ConstantR0<uint8_t>(b, position), Dims(v));
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
    ctx->SetOutput(1, Fence(on_cpu_, packing.Pack(index))[0]);
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
    OP_REQUIRES_OK(ctx, CheckStream("index", ctx, packing));
    const XlaOp dy = F32(ctx->Input(1));
    if (out.num_elements() == 0) {
      ctx->SetOutput(0, Zeros(dy.builder(), ctx->output_xla_type(0), in.dim_sizes()));
      return;
    }
    const XlaOp index = xla::ConvertElementType(
        packing.Unpack(on_cpu_,
                       Gated(on_cpu_, {ctx->Input(0)}, ctx->Input(1))),
        xla::U8);
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
    const Packing packing(dims, rate_.bits);
    OP_REQUIRES_OK(ctx, CheckStream("stream", ctx, packing));
    const int64_t last = dims.size() - 1;
    auto by_channel = [&](XlaOp vector) {
      return xla::BroadcastInDim(vector, dims, {last});
    };
    const std::vector<XlaOp> parts =
        GatedWith(on_cpu_, packing.Parts(ctx->Input(0)), &gate);
    const XlaOp dy = F32(gate);
    const XlaOp x_hat =
        rate_.Decode(packing.Unpack(on_cpu_, parts), StepOf(ctx->Input(5)));
    const XlaOp gamma = ctx->Input(2), inv_std = ctx->Input(4);
    const XlaOp x_norm =
        (x_hat - by_channel(ctx->Input(3))) * by_channel(inv_std);
    const XlaOp dbeta = SumPixels(dy), dgamma = SumPixels(dy * x_norm);
    const XlaOp pixels = xla::FullLike(
        dbeta, static_cast<float>(std::max<int64_t>(1, Size(dy) / channels)));
    const XlaOp dx =
        by_channel(gamma * inv_std) *
        (dy - by_channel(dbeta / pixels) - x_norm * by_channel(dgamma / pixels));
    ctx->SetOutput(0, xla::ConvertElementType(dx, ctx->output_xla_type(0)));
    ctx->SetOutput(1, dgamma);
    ctx->SetOutput(2, dbeta);
  }

 private:
  static XlaOp SumPixels(XlaOp x) {
    std::vector<int64_t> all(Dims(x).size() - 1);
    for (size_t d = 0; d < all.size(); ++d) all[d] = d;
    return xla::Reduce(x, Scalar(x, 0),
                       xla::CreateScalarAddComputation(xla::F32, x.builder()),
                       all);
  }

  FixedRate rate_;
};

class GradientStatsXla : public Lowering {
 public:
  using Lowering::Lowering;

  void Compile(XlaOpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckStatsInputs(ShapeOf(ctx, 1), ShapeOf(ctx, 2)));
    const XlaOp dy = F32(ctx->Input(0)), previous = ctx->Input(2);
    const std::vector<int64_t> dims = Dims(dy);
    if (Size(dy) == 0) {
      ctx->SetOutput(0, previous);
      return;
    }
    const XlaOp values = FiniteOrZero(dy);
    const std::vector<XlaOp> reduced =
        Reduced(on_cpu_, Packing(dims, on_cpu_ ? 1 : 8),
                {{Squared(values), kSum},
                 {xla::Abs(values), kSum},
                 {F32(xla::Not(xla::IsFinite(dy))), kSum}});
    const XlaOp good =
        xla::Max(Scalar(dy, Size(dy)) - reduced[2], Scalar(dy, 1));
    const XlaOp stats[] = {
        reduced[0] / Scalar(dy, dims.empty() ? 1 : dims.back()),
        reduced[1] / good, reduced[2]};
    std::vector<XlaOp> fields;
    for (const XlaOp& s : stats) fields.push_back(xla::Reshape(s, {1}));
    ctx->SetOutput(
        0, xla::Select(xla::Broadcast(ctx->Input(1), {3}),
                       xla::ConcatInDim(dy.builder(), fields, 0), previous));
  }
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

#define REGISTER(OP, KERNEL)                    \
  COMPTRAIN_REGISTER(OP, kCpuCompiler, KERNEL) \
  COMPTRAIN_REGISTER(OP, kGpuCompiler, KERNEL)
REGISTER("Compress", CompressXla)
REGISTER("Decompress", DecompressXla)
REGISTER("StreamMaskGrad", StreamMaskGradXla)
REGISTER("Bitmask", BitmaskXla)
REGISTER("BitmaskGrad", BitmaskGradXla)
REGISTER("MaxPool", MaxPoolXla)
REGISTER("MaxPoolGrad", MaxPoolGradXla)
REGISTER("BatchNormGrad", BatchNormGradXla)
REGISTER("GradientStats", GradientStatsXla)
#undef REGISTER
REGISTER_KERNEL_BUILDER(Name("Comptrain>Fence").Device(kCpuCompiler), FenceXla);
REGISTER_KERNEL_BUILDER(Name("Comptrain>Fence").Device(kGpuCompiler), FenceXla);

}  // namespace
}  // namespace comptrain
