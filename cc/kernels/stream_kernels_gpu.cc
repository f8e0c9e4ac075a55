// GPU kernels of Compress, Decompress, StreamMaskGrad and BatchNormGrad: validate,
// allocate, call cc/codec.
#include <cmath>
#include <cstring>

#include "cc/codec/choose.h"
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

class CompressGpuOp : public OpKernel {
 public:
  explicit CompressGpuOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, attrs_.Read(ctx));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& state_tensor = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckState(state_tensor.shape()));
    const float* state = state_tensor.flat<float>().data();
    EncodeParams params = attrs_.Params(x);
    CUstream_st* const stream = GpuStream(ctx);
    uint32_t* unused_word = nullptr;
    OP_REQUIRES_OK(ctx, DamageFlag::Get(&unused_word));

    // The scale of the tensor itself: where bounds are relative to its range,
    // and at the first step. What a codec is chosen by.
    const bool needs_summary = attrs_.of_range || attrs_.NeedsSigma(state);
    const SamplePlan plan = attrs_.is_auto ? SamplePlan(params) : SamplePlan();
    Summary summary;
    Tensor sample;
    OP_REQUIRES_OK(ctx,
                   Look(ctx, x, plan, &sample, needs_summary ? &summary : nullptr));
    const double range =
        attrs_.of_range && summary.finite > 0
            ? static_cast<double>(summary.high) - summary.low
            : 0;
    params.eb = attrs_.Bound(state, range, [&] { return Sigma(summary); });
    const CodecId codec = attrs_.is_auto
                              ? ChooseBySample(Data(sample), plan, params)
                              : attrs_.codec;

    Tensor scratch;
    const size_t scratch_bytes = GpuScratchBytes(codec, params);
    OP_REQUIRES_OK(
        ctx, AllocateScratch(ctx, scratch_bytes + sizeof(GpuTotals), &scratch));
    auto* const scratch_dev = static_cast<uint8_t*>(MutableData(&scratch));
    auto* const totals_dev =
        reinterpret_cast<GpuTotals*>(scratch_dev + scratch_bytes);
    OP_REQUIRES_OK(ctx, ToAbsl(GpuMeasure(codec, params, Data(x),
                                          scratch_dev, totals_dev, stream)));
    Tensor totals_host;
    OP_REQUIRES_OK(ctx, ReadBack(ctx, totals_dev, sizeof *totals_dev, &totals_host));
    GpuTotals totals;
    std::memcpy(&totals, Data(totals_host), sizeof totals);

    Tensor* out = nullptr;
    const int64_t stream_bytes = GpuStreamBytes(codec, params, totals);
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(1, TensorShape({stream_bytes}), &out));
    OP_REQUIRES_OK(ctx,
                   ToAbsl(GpuWrite(codec, params, Data(x), scratch_dev, totals,
                                   MutableData(out), stream)));
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
  // Brings to the host, in one copy, a sample where there is to be one, and a
  // summary where there is room for it.
  static absl::Status Look(OpKernelContext* ctx, const Tensor& x,
                           const SamplePlan& plan, Tensor* sample,
                           Summary* summary) {
    const DType dtype = ToDType(x.dtype());
    const size_t sample_bytes = plan.n * ItemBytes(dtype);
    if (sample_bytes == 0 && summary == nullptr) return absl::OkStatus();
    Tensor scratch;
    absl::Status s = AllocateScratch(
        ctx, sample_bytes + (summary ? SummaryGpuScratchBytes() : 0), &scratch);
    if (!s.ok()) return s;
    auto* const at = static_cast<uint8_t*>(MutableData(&scratch));
    s = ToAbsl(TakeSampleGpu(Data(x), dtype, plan, at, GpuStream(ctx)));
    if (s.ok() && summary) {
      s = ToAbsl(SummarizeGpu(Data(x), dtype, x.NumElements(), at + sample_bytes,
                              GpuStream(ctx)));
    }
    if (s.ok()) {
      s = ReadBack(ctx, at, sample_bytes + (summary ? sizeof *summary : 0),
                   sample);
    }
    if (s.ok() && summary) {
      std::memcpy(summary, static_cast<const uint8_t*>(Data(*sample)) + sample_bytes,
                  sizeof *summary);
    }
    return s;
  }

  static double Sigma(const Summary& s) {
    if (!(s.finite > 0)) return 0;
    const double mean = s.sum / s.finite;
    return std::sqrt(std::fmax(0.0, s.sum_sq / s.finite - mean * mean));
  }

  CompressAttrs attrs_;
};

// What the ops that read a stream, their first input, have in common.
class ReaderOp : public OpKernel {
 public:
  explicit ReaderOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadCodec(ctx, &codec_, &is_auto_));
  }

 protected:
  // The stream as one of a tensor of that type and shape.
  absl::Status Open(OpKernelContext* ctx, tensorflow::DataType dtype,
                    const TensorShape& shape, GpuEncoded* from) const {
    const Tensor& stream = ctx->input(0);
    from->stream_dev = Data(stream);
    from->bytes = stream.NumElements();
    from->dtype = ToDType(dtype);
    from->n = shape.num_elements();
    from->channels = from->n == 0 ? 1 : Channels(shape);
    from->any_codec = is_auto_;
    return DamageFlag::Get(&from->damaged_dev);
  }
  CodecId codec() const { return codec_; }

 private:
  CodecId codec_ = CodecId::kPlane;
  bool is_auto_ = false;
};

class DecompressGpuOp : public ReaderOp {
 public:
  using ReaderOp::ReaderOp;

  void Compute(OpKernelContext* ctx) override {
    TensorShape shape;
    OP_REQUIRES_OK(ctx, tensorflow::tensor::MakeShape(ctx->input(1), &shape));
    GpuEncoded from;
    OP_REQUIRES_OK(ctx,
                   Open(ctx, ctx->expected_output_dtype(0), shape, &from));
    Tensor* x_hat = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &x_hat));
    OP_REQUIRES_OK(ctx, ToAbsl(GpuDecode(codec(), from, MutableData(x_hat),
                                         GpuStream(ctx))));
  }
};

class StreamMaskGradGpuOp : public ReaderOp {
 public:
  using ReaderOp::ReaderOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& dy = ctx->input(1);
    GpuEncoded from;
    OP_REQUIRES_OK(ctx, Open(ctx, dy.dtype(), dy.shape(), &from));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({1}, 0, dy.shape(),
                                                              &dx));
    OP_REQUIRES_OK(ctx, ToAbsl(GpuMaskGradient(codec(), from, Data(dy),
                                               MutableData(dx), GpuStream(ctx))));
  }
};

class BatchNormGradGpuOp : public ReaderOp {
 public:
  using ReaderOp::ReaderOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& dy = ctx->input(1);
    int64_t channels = 0;
    OP_REQUIRES_OK(ctx, BatchNormChannelsOf(ctx, &channels));
    GpuEncoded from;
    OP_REQUIRES_OK(ctx, Open(ctx, dy.dtype(), dy.shape(), &from));
    CUstream_st* const on = GpuStream(ctx);

    Tensor x_hat;
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(dy.dtype(), dy.shape(), &x_hat));
    OP_REQUIRES_OK(ctx,
                   ToAbsl(GpuDecode(codec(), from, MutableData(&x_hat), on)));
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
    OP_REQUIRES_OK(
        ctx, AllocateScratch(ctx, BatchNormGpuScratchBytes(from.n, channels),
                             &scratch));
    OP_REQUIRES_OK(
        ctx, ToAbsl(BatchNormGpuGradient(
                 Data(x_hat), from.dtype, from.n, channels, Data(dy),
                 ctx->input(2).flat<float>().data(),
                 ctx->input(3).flat<float>().data(),
                 ctx->input(4).flat<float>().data(), MutableData(&scratch),
                 MutableData(dx), dgamma->flat<float>().data(),
                 dbeta->flat<float>().data(), on)));
  }
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
