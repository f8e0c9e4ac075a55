// GPU kernels of Compress, Decompress and StreamMaskGrad: validate, allocate,
// call cc/codec.
#include <cstring>

#include "cc/codec/registry/choose.h"
#include "cc/codec/registry/gpu.h"
#include "cc/codec/statistics/gpu.h"
#include "cc/codec/statistics/items.h"
#include "cc/codec/stream/gpu_scales.h"
#include "cc/kernels/common/gpu.h"
#include "cc/kernels/common/register.h"
#include "cc/kernels/stream/attrs.h"
#include "cc/kernels/stream/gpu_reader.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace comptrain {
namespace {

class GpuCompressOp : public CompressOpBase {
 public:
  using CompressOpBase::CompressOpBase;

  void Compress(OpKernelContext* ctx, const Tensor& x, const float* state,
                EncodeParams params) const override {
    CUstream_st* const cuda_stream = CudaStream(ctx);
    uint32_t* unused_word = nullptr;
    OP_REQUIRES_OK(ctx, DamageFlag::Get(&unused_word));

    // What a sample says of the channels; of the whole tensor, its range where
    // bounds are relative to that; what a codec is chosen by.
    Tensor scales_scratch, scale_totals_host;
    OP_REQUIRES_OK(ctx,
                   AllocateScratch(ctx, GpuScalesScratchBytes(params.channels),
                                   &scales_scratch));
    void* const scales_dev = MutableData(&scales_scratch);
    OP_REQUIRES_OK(
        ctx, AllocatePinned(ctx, sizeof(GpuScaleTotals), &scale_totals_host));
    auto* const scale_totals =
        static_cast<GpuScaleTotals*>(MutableData(&scale_totals_host));
    *scale_totals = GpuScaleTotals{0, 0, 1, 0, 0};
    if (params.n > 0) {
      OP_REQUIRES_OK(ctx,
                     ToAbsl(GpuSampleChannels({Data(x), params.dtype, params.n},
                                              params.channels, scales_dev,
                                              scale_totals, cuda_stream)));
    }
    const SamplePlan plan = attrs_.is_auto ? SamplePlan(params) : SamplePlan();
    Summary summary;
    Tensor sample;
    OP_REQUIRES_OK(ctx, Look(ctx, x, plan, &sample,
                             attrs_.rule.of_range ? &summary : nullptr));
    if (attrs_.rule.NeedsSigma(state)) OP_REQUIRES_OK(ctx, Wait(ctx));
    const double range = attrs_.rule.of_range && summary.finite > 0
                             ? static_cast<double>(summary.high) - summary.low
                             : 0;
    params.eb = attrs_.rule.Bound(state, range, scale_totals->sigma);
    const bool by_channel = attrs_.rule.by_channel && !attrs_.rule.lossless;
    if (by_channel) {
      OP_REQUIRES_OK(ctx, ToAbsl(GpuOwnScales(params, scales_dev, scale_totals,
                                              cuda_stream)));
    }
    CodecId codec = attrs_.codec;
    if (attrs_.is_auto) {
      OP_REQUIRES_OK(ctx, Choose(ctx, plan, sample, params,
                                 by_channel ? scales_dev : nullptr, &codec));
    }
    if (by_channel && !IsLossless(codec)) {
      params.scales = GpuScalesIn(params, scales_dev);
    }

    Tensor scratch, totals_host;
    const GpuEncoder& encoder = GpuEncoderOf(codec);
    OP_REQUIRES_OK(
        ctx, AllocateScratch(ctx, encoder.scratch_bytes(params), &scratch));
    OP_REQUIRES_OK(ctx, AllocatePinned(ctx, sizeof(GpuTotals), &totals_host));
    void* const scratch_dev = MutableData(&scratch);
    // Written over the bus: a copy of its own would take longer.
    OP_REQUIRES_OK(ctx, ToAbsl(encoder.measure(
                            params, Data(x), scratch_dev,
                            static_cast<GpuTotals*>(MutableData(&totals_host)),
                            cuda_stream)));
    OP_REQUIRES_OK(ctx, Wait(ctx));
    GpuTotals totals;
    std::memcpy(&totals, Data(totals_host), sizeof totals);
    if (!scale_totals->has_exponents) params.scales.exponents = nullptr;
    if (!scale_totals->has_centres) params.scales.centres = nullptr;

    Tensor* out = nullptr;
    const int64_t stream_bytes = encoder.stream_bytes(params, totals);
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(1, TensorShape({stream_bytes}), &out));
    OP_REQUIRES_OK(ctx,
                   ToAbsl(encoder.write(params, Data(x), scratch_dev, totals,
                                        MutableData(out), cuda_stream)));
    Tensor* new_state = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(2, TensorShape({kStateFields}), &new_state));
    EncodedTensor encoded;
    encoded.eb = params.eb;
    encoded.sigma = scale_totals->sigma;
    encoded.range = range;
    encoded.nonzero_ratio =
        NonzeroRatio(static_cast<int64_t>(totals.nonzero), params.n);
    encoded.rms_bound_over_eb = scale_totals->rms_bound_over_eb;
    encoded.stream_bytes = stream_bytes;
    attrs_.rule.NextState(state, encoded, new_state->flat<float>().data());
    ctx->set_output(0, x);
  }

 private:
  // The codec that a sample leads to, by the scales of its channels.
  static absl::Status Choose(OpKernelContext* ctx, const SamplePlan& plan,
                             const Tensor& sample, EncodeParams params,
                             const void* scales_dev, CodecId* codec) {
    Tensor host;
    if (plan.n > 0 && scales_dev != nullptr) {
      const absl::Status s = ReadBack(
          ctx, scales_dev, GpuScalesScratchBytes(params.channels), &host);
      if (!s.ok()) return s;
      params.scales = GpuScalesIn(params, Data(host));
    }
    *codec = ChooseBySample(Data(sample), plan, params);
    return absl::OkStatus();
  }

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
        ctx, sample_bytes + (summary ? GpuSummaryScratchBytes() : 0), &scratch);
    if (!s.ok()) return s;
    auto* const at = static_cast<uint8_t*>(MutableData(&scratch));
    s = ToAbsl(GpuTakeSample(Data(x), dtype, plan, at, CudaStream(ctx)));
    if (s.ok() && summary) {
      s = ToAbsl(GpuSummarize(Data(x), dtype, x.NumElements(),
                              at + sample_bytes, CudaStream(ctx)));
    }
    if (s.ok()) {
      s = ReadBack(ctx, at, sample_bytes + (summary ? sizeof *summary : 0),
                   sample);
    }
    if (s.ok() && summary) {
      std::memcpy(summary,
                  static_cast<const uint8_t*>(Data(*sample)) + sample_bytes,
                  sizeof *summary);
    }
    return s;
  }
};

class GpuDecompressOp : public GpuReaderOp {
 public:
  using GpuReaderOp::GpuReaderOp;

  void Compute(OpKernelContext* ctx) override {
    TensorShape shape;
    OP_REQUIRES_OK(ctx, tensorflow::tensor::MakeShape(ctx->input(1), &shape));
    GpuEncoded from;
    OP_REQUIRES_OK(ctx, Open(ctx, ctx->expected_output_dtype(0), shape, &from));
    Tensor* x_hat = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &x_hat));
    OP_REQUIRES_OK(ctx, ToAbsl(GpuDecode(codec(), from, MutableData(x_hat),
                                         CudaStream(ctx))));
  }
};

class GpuStreamMaskGradOp : public GpuReaderOp {
 public:
  using GpuReaderOp::GpuReaderOp;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckOneGradient(ctx));
    const Tensor& dy = ctx->input(1);
    GpuEncoded from;
    OP_REQUIRES_OK(ctx, Open(ctx, dy.dtype(), dy.shape(), &from));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({1}, 0, dy.shape(), &dx));
    OP_REQUIRES_OK(
        ctx, ToAbsl(GpuMaskGradient(codec(), from, Data(dy), MutableData(dx),
                                    CudaStream(ctx))));
  }
};

COMPTRAIN_REGISTER("Compress", tensorflow::DEVICE_GPU, GpuCompressOp,
                   .HostMemory("state").HostMemory("new_state"))
COMPTRAIN_REGISTER("Decompress", tensorflow::DEVICE_GPU, GpuDecompressOp,
                   .HostMemory("shape").HostMemory("state"))
COMPTRAIN_REGISTER("StreamMaskGrad", tensorflow::DEVICE_GPU,
                   GpuStreamMaskGradOp)

}  // namespace
}  // namespace comptrain
