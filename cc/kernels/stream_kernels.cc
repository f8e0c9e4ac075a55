// CPU kernels of Compress, Decompress and StreamMaskGrad: validate, allocate,
// call cc/codec.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc/codec/choose.h"
#include "cc/codec/codec.h"
#include "cc/kernels/state.h"
#include "cc/kernels/util.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace comptrain {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

double SigmaOf(const PlaneStats& s, int64_t n) {
  if (n == 0) return 0;
  const double mean = s.sum / n;
  return std::sqrt(std::max(0.0, s.sum_sq / n - mean * mean));
}

// Pixels from one to the one above it, where there are images.
int64_t ImageWidth(const TensorShape& shape) {
  return shape.dims() >= 4 ? shape.dim_size(shape.dims() - 2) : 0;
}

// A constant tensor has no sigma to be relative to; any normal bound does.
float UsableBound(double bound) {
  const double smallest = 1e-30;
  return static_cast<float>(std::max(bound, smallest));
}

class CompressOp : public OpKernel {
 public:
  explicit CompressOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string codec;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("codec", &codec));
    auto_ = codec == "auto";
    OP_REQUIRES(ctx, auto_ || CodecFromName(codec, &codec_),
                absl::InvalidArgumentError(absl::StrCat(
                    "codec must be the name of a codec, got '", codec, "'")));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("relative_bound", &relative_bound_));
    std::string relative_to;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("relative_to", &relative_to));
    of_range_ = relative_to == "range";
    OP_REQUIRES_OK(ctx, ctx->GetAttr("decay", &decay_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("mid_rise", &mid_rise_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dither", &dither_));
    OP_REQUIRES(ctx, std::isnormal(relative_bound_) && relative_bound_ > 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "relative_bound must be a positive normal number, got ",
                    relative_bound_)));
    OP_REQUIRES(ctx, decay_ >= 0 && decay_ < 1,
                absl::InvalidArgumentError(
                    absl::StrCat("decay must be in [0, 1), got ", decay_)));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& state_tensor = ctx->input(1);
    OP_REQUIRES(ctx, state_tensor.NumElements() == kStateFields,
                absl::InvalidArgumentError(absl::StrCat(
                    "state must have ", static_cast<int>(kStateFields),
                    " elements, got ", state_tensor.NumElements())));
    const auto state = state_tensor.vec<float>();
    const DType dtype = ToDType(x.dtype());
    const int64_t n = x.NumElements();

    EncodeParams params;
    params.dtype = dtype;
    params.n = n;
    params.channels = n == 0 ? 1 : Channels(x.shape());
    params.width = ImageWidth(x.shape());
    params.mid_rise = mid_rise_;
    params.dither = dither_;
    const ParallelFor threads = WorkerThreads(ctx);
    const double range =
        of_range_ ? ValueRange(Data(x), dtype, n, threads) : 0;
    if (!auto_ && IsLossless(codec_)) {
      params.eb = 0;
    } else if (state(kBoundSet) != 0) {
      params.eb = state(kBoundSet);
    } else {
      double scale = of_range_ ? range : state(kRunningSigma);
      if (!of_range_ && !(scale > 0)) scale = SampleSigma(Data(x), dtype, n);
      params.eb = UsableBound(relative_bound_ * scale);
    }

    Tensor scratch;
    const std::unique_ptr<StreamEncoder> encoder = MakeEncoder(
        auto_ ? ChooseCodec(Data(x), params) : codec_, params);
    const int64_t scratch_bytes =
        static_cast<int64_t>(encoder->scratch_bytes());
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_temp(tensorflow::DT_UINT8,
                                      TensorShape({scratch_bytes}), &scratch));
    OP_REQUIRES_OK(
        ctx, ToAbsl(encoder->Encode(
                 Data(x), static_cast<uint8_t*>(MutableData(&scratch)),
                 scratch_bytes, threads)));

    Tensor* stream = nullptr;
    const int64_t stream_bytes = encoder->total_bytes();
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(1, TensorShape({stream_bytes}), &stream));
    OP_REQUIRES_OK(ctx,
                   ToAbsl(encoder->Write(stream->flat<uint8_t>().data(), threads)));

    Tensor* new_state_tensor = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, TensorShape({kStateFields}),
                                             &new_state_tensor));
    auto new_state = new_state_tensor->vec<float>();
    const PlaneStats stats = encoder->stats();
    const double sigma = SigmaOf(stats, n);
    const double running = state(kRunningSigma);
    new_state(kBoundSet) = state(kBoundSet);
    new_state(kBoundUsed) = params.eb;
    new_state(kRunningSigma) =
        running > 0 ? decay_ * running + (1 - decay_) * sigma : sigma;
    new_state(kNonzeroRatio) =
        n == 0 ? 0 : static_cast<double>(stats.nonzero) / n;
    new_state(kSigma) = sigma;
    new_state(kStreamBytes) = stream_bytes;
    new_state(kRange) = range;
    new_state(kSaturated) = state(kSaturated);
    new_state(kRunningRange) = state(kRunningRange);
    ctx->set_output(0, x);
  }

 private:
  float relative_bound_;
  float decay_;
  bool mid_rise_;
  bool dither_;
  bool of_range_;
  bool auto_;
  CodecId codec_ = CodecId::kPlane;
};

class DecompressOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& stream = ctx->input(0);
    const Tensor& shape_tensor = ctx->input(1);
    TensorShape shape;
    OP_REQUIRES_OK(ctx, tensorflow::tensor::MakeShape(shape_tensor, &shape));
    Tensor* x_hat = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &x_hat));
    OP_REQUIRES_OK(
        ctx, ToAbsl(DecodeStream(stream.flat<uint8_t>().data(),
                                 stream.NumElements(),
                                 ToDType(x_hat->dtype()),
                                 x_hat->NumElements(), MutableData(x_hat),
                                 WorkerThreads(ctx))));
  }
};

class StreamMaskGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& stream = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({1}, 0, dy.shape(),
                                                              &dx));
    OP_REQUIRES_OK(
        ctx, ToAbsl(StreamMaskGradient(
                 stream.flat<uint8_t>().data(), stream.NumElements(),
                 ToDType(dy.dtype()), dy.NumElements(), Data(dy),
                 MutableData(dx), WorkerThreads(ctx))));
  }
};

#define REGISTER(T)                                                         \
  REGISTER_KERNEL_BUILDER(Name("Comptrain>Compress")                        \
                              .Device(tensorflow::DEVICE_CPU)               \
                              .TypeConstraint<T>("T"),                      \
                          CompressOp);                                      \
  REGISTER_KERNEL_BUILDER(Name("Comptrain>Decompress")                      \
                              .Device(tensorflow::DEVICE_CPU)               \
                              .TypeConstraint<T>("T"),                      \
                          DecompressOp);                                    \
  REGISTER_KERNEL_BUILDER(Name("Comptrain>StreamMaskGrad")                  \
                              .Device(tensorflow::DEVICE_CPU)               \
                              .TypeConstraint<T>("T"),                      \
                          StreamMaskGradOp);
REGISTER(float)
REGISTER(Eigen::bfloat16)
REGISTER(Eigen::half)
#undef REGISTER

}  // namespace
}  // namespace comptrain
