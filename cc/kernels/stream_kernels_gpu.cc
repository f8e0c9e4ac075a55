// GPU kernels of Compress, Decompress, StreamMaskGrad and BatchNormGrad: validate,
// allocate, call cc/codec.
#include <cmath>

#include "cc/codec/codec_gpu.h"
#include "cc/codec/items.h"
#include "cc/codec/items_gpu.h"
#include "cc/kernels/batch_norm_shape.h"
#include "cc/kernels/compress_attrs.h"
#include "cc/kernels/gpu_util.h"
#include "cc/kernels/register.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace comptrain {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// The codec of an op; a stream does not tell the host what it is.
absl::Status ReadGpuCodec(OpKernelConstruction* ctx, CodecId* codec) {
  bool is_auto = false;
  const absl::Status s = ReadCodec(ctx, codec, &is_auto);
  if (!s.ok() || !is_auto) return s;
  return absl::UnimplementedError(
      "codec 'auto' has no GPU kernels; use codec 'plane', 'rans' or 'zvc'");
}

int64_t ChannelsOf(const TensorShape& shape) {
  return shape.num_elements() == 0 ? 1 : Channels(shape);
}

class CompressGpuOp : public OpKernel {
 public:
  explicit CompressGpuOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, attrs_.Read(ctx));
    OP_REQUIRES_OK(ctx, ReadGpuCodec(ctx, &attrs_.codec));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& state_tensor = ctx->input(1);
    OP_REQUIRES_OK(ctx, attrs_.CheckState(state_tensor));
    const float* state = state_tensor.flat<float>().data();
    EncodeParams params = attrs_.Params(x);
    CUstream_st* const stream = GpuStream(ctx);
    uint32_t* unused_word = nullptr;
    OP_REQUIRES_OK(ctx, DamageFlag::Get(&unused_word));

    // The scale of the tensor itself: where bounds are relative to its range,
    // and at the first step.
    Summary summary;
    if (attrs_.of_range || attrs_.NeedsSigma(state)) {
      OP_REQUIRES_OK(ctx, Summarize(ctx, x, params, &summary));
    }
    const double range =
        attrs_.of_range && summary.finite > 0
            ? static_cast<double>(summary.high) - summary.low
            : 0;
    params.eb = attrs_.Bound(state, range, [&] { return Sigma(summary); });

    Tensor scratch;
    const size_t scratch_bytes = GpuScratchBytes(attrs_.codec, params);
    OP_REQUIRES_OK(
        ctx, AllocateScratch(ctx, scratch_bytes + sizeof(GpuTotals), &scratch));
    auto* const scratch_dev = static_cast<uint8_t*>(MutableData(&scratch));
    auto* const totals_dev =
        reinterpret_cast<GpuTotals*>(scratch_dev + scratch_bytes);
    OP_REQUIRES_OK(ctx, ToAbsl(GpuMeasure(attrs_.codec, params, Data(x),
                                          scratch_dev, totals_dev, stream)));
    GpuTotals totals;
    OP_REQUIRES_OK(ctx, ReadBack(ctx, totals_dev, &totals));

    Tensor* out = nullptr;
    const int64_t stream_bytes = GpuStreamBytes(attrs_.codec, params, totals);
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(1, TensorShape({stream_bytes}), &out));
    OP_REQUIRES_OK(ctx,
                   ToAbsl(GpuWrite(attrs_.codec, params, Data(x), scratch_dev,
                                   totals, MutableData(out), stream)));
    Tensor* new_state = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, TensorShape({kStateFields}),
                                             &new_state));
    PlaneStats stats;
    stats.nonzero = static_cast<int64_t>(totals.nonzero);
    stats.sum = totals.sum;
    stats.sum_sq = totals.sum_sq;
    attrs_.NextState(state, params, stats, range, stream_bytes,
                     new_state->flat<float>().data());
    ctx->set_output(0, x);
  }

 private:
  static absl::Status Summarize(OpKernelContext* ctx, const Tensor& x,
                                const EncodeParams& params, Summary* summary) {
    Tensor scratch;
    absl::Status s = AllocateScratch(ctx, SummaryGpuScratchBytes(), &scratch);
    if (!s.ok()) return s;
    s = ToAbsl(SummarizeGpu(Data(x), params.dtype, params.n,
                            MutableData(&scratch), GpuStream(ctx)));
    return s.ok() ? ReadBack(ctx, Data(scratch), summary) : s;
  }

  static double Sigma(const Summary& s) {
    if (!(s.finite > 0)) return 0;
    const double mean = s.sum / s.finite;
    return std::sqrt(std::fmax(0.0, s.sum_sq / s.finite - mean * mean));
  }

  CompressAttrs attrs_;
};

class DecompressGpuOp : public OpKernel {
 public:
  explicit DecompressGpuOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadGpuCodec(ctx, &codec_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& stream = ctx->input(0);
    TensorShape shape;
    OP_REQUIRES_OK(ctx, tensorflow::tensor::MakeShape(ctx->input(1), &shape));
    uint32_t* damaged = nullptr;
    OP_REQUIRES_OK(ctx, DamageFlag::Get(&damaged));
    Tensor* x_hat = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &x_hat));
    OP_REQUIRES_OK(
        ctx, ToAbsl(GpuDecode(codec_, Data(stream), stream.NumElements(),
                              ToDType(x_hat->dtype()), x_hat->NumElements(),
                              ChannelsOf(shape), MutableData(x_hat), damaged,
                              GpuStream(ctx))));
  }

 private:
  CodecId codec_;
};

class StreamMaskGradGpuOp : public OpKernel {
 public:
  explicit StreamMaskGradGpuOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadGpuCodec(ctx, &codec_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& stream = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    uint32_t* damaged = nullptr;
    OP_REQUIRES_OK(ctx, DamageFlag::Get(&damaged));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({1}, 0, dy.shape(),
                                                              &dx));
    OP_REQUIRES_OK(
        ctx, ToAbsl(GpuMaskGradient(codec_, Data(stream), stream.NumElements(),
                                    ToDType(dy.dtype()), dy.NumElements(),
                                    ChannelsOf(dy.shape()), Data(dy),
                                    MutableData(dx), damaged, GpuStream(ctx))));
  }

 private:
  CodecId codec_;
};

class BatchNormGradGpuOp : public OpKernel {
 public:
  explicit BatchNormGradGpuOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadGpuCodec(ctx, &codec_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& stream = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    int64_t channels = 0;
    OP_REQUIRES_OK(ctx, BatchNormChannelsOf(ctx, &channels));
    uint32_t* damaged = nullptr;
    OP_REQUIRES_OK(ctx, DamageFlag::Get(&damaged));
    const DType dtype = ToDType(dy.dtype());
    const int64_t n = dy.NumElements();
    CUstream_st* const on = GpuStream(ctx);

    Tensor x_hat;
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(dy.dtype(), dy.shape(), &x_hat));
    OP_REQUIRES_OK(
        ctx, ToAbsl(GpuDecode(codec_, Data(stream), stream.NumElements(), dtype,
                              n, channels, MutableData(&x_hat), damaged, on)));
    Tensor* dx = nullptr;
    Tensor* dgamma = nullptr;
    Tensor* dbeta = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output(
                            {1}, 0, dy.shape(), &dx));
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(1, TensorShape({channels}), &dgamma));
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(2, TensorShape({channels}), &dbeta));
    Tensor scratch;
    OP_REQUIRES_OK(ctx, AllocateScratch(
                            ctx, BatchNormGpuScratchBytes(n, channels), &scratch));
    OP_REQUIRES_OK(
        ctx, ToAbsl(BatchNormGpuGradient(
                 Data(x_hat), dtype, n, channels, Data(dy),
                 ctx->input(2).flat<float>().data(),
                 ctx->input(3).flat<float>().data(),
                 ctx->input(4).flat<float>().data(), MutableData(&scratch),
                 MutableData(dx), dgamma->flat<float>().data(),
                 dbeta->flat<float>().data(), on)));
  }

 private:
  CodecId codec_;
};

COMPTRAIN_REGISTER("Compress", tensorflow::DEVICE_GPU, CompressGpuOp,
                   .HostMemory("state").HostMemory("new_state"))
COMPTRAIN_REGISTER("Decompress", tensorflow::DEVICE_GPU, DecompressGpuOp,
                   .HostMemory("shape").HostMemory("state"))
COMPTRAIN_REGISTER("StreamMaskGrad", tensorflow::DEVICE_GPU, StreamMaskGradGpuOp)
COMPTRAIN_REGISTER("BatchNormGrad", tensorflow::DEVICE_GPU, BatchNormGradGpuOp,
                   .HostMemory("state"))

}  // namespace
}  // namespace comptrain
