// CPU kernels of Compress, Decompress, StreamMaskGrad and Fence: validate,
// allocate, call cc/codec.
#include <memory>

#include "cc/codec/registry/choose.h"
#include "cc/codec/registry/codec.h"
#include "cc/codec/statistics/tensor_stats.h"
#include "cc/codec/stream/row_scales.h"
#include "cc/codec/stream/scales.h"
#include "cc/kernels/stream/attrs.h"
#include "cc/kernels/common/register.h"
#include "cc/kernels/common/util.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace comptrain {
namespace {

// A tensor whose last dimension is `channels`, in rows of that.
int64_t RowsOf(int64_t n, int64_t channels) {
  return channels == 0 ? 0 : n / channels;
}

class CompressOp : public CompressOpBase {
 public:
  using CompressOpBase::CompressOpBase;

  void Compress(OpKernelContext* ctx, const Tensor& given, const float* state,
                EncodeParams params) const override {
    const ParallelFor threads = WorkerThreads(ctx);
    Tensor x = given, row_scales = NoScales();
    if (attrs_.row_scales && !attrs_.rule.lossless) {
      OP_REQUIRES_OK(ctx, DivideRows(ctx, params, threads, &x, &row_scales));
    }
    const double range =
        attrs_.rule.of_range
            ? ValueRange(Data(x), params.dtype, params.n, threads)
            : 0;
    const ChannelSample sample = SampleChannels(Data(x), params.dtype, params.n,
                                                params.channels, threads);
    params.eb = attrs_.rule.Bound(state, range, sample.sigma);
    const OwnScales own = attrs_.rule.by_channel && !attrs_.rule.lossless
                              ? OwnScales(sample, params)
                              : OwnScales();
    params.scales = own.scales();

    Tensor scratch;
    const std::unique_ptr<StreamEncoder> encoder = MakeEncoder(
        attrs_.is_auto ? ChooseCodec(Data(x), params) : attrs_.codec, params);
    const int64_t scratch_bytes =
        static_cast<int64_t>(encoder->scratch_bytes());
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_temp(tensorflow::DT_UINT8,
                                      TensorShape({scratch_bytes}), &scratch));
    OP_REQUIRES_OK(ctx,
                   ToAbsl(encoder->Encode(
                       Data(x), static_cast<uint8_t*>(MutableData(&scratch)),
                       scratch_bytes, threads)));

    Tensor* stream = nullptr;
    const int64_t own_bytes = encoder->total_bytes();
    const int64_t stream_bytes = own_bytes + row_scales.NumElements();
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(1, TensorShape({stream_bytes}), &stream));
    uint8_t* const to = stream->flat<uint8_t>().data();
    OP_REQUIRES_OK(ctx, ToAbsl(encoder->Write(to, threads)));
    std::copy_n(row_scales.flat<int8_t>().data(), row_scales.NumElements(),
                to + own_bytes);

    Tensor* new_state = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(2, TensorShape({kStateFields}), &new_state));
    EncodedTensor encoded;
    encoded.eb = params.eb;
    encoded.sigma = sample.sigma;
    encoded.range = range;
    encoded.nonzero_ratio = NonzeroRatio(encoder->nonzero(), params.n);
    encoded.rms_bound_over_eb = own.rms_bound_over_eb() *
                                RmsOfRowScales(row_scales.flat<int8_t>().data(),
                                               row_scales.NumElements());
    encoded.stream_bytes = stream_bytes;
    attrs_.rule.NextState(state, encoded, new_state->flat<float>().data());
    ctx->set_output(0, given);
  }

 private:
  static Tensor NoScales() {
    return Tensor(tensorflow::DT_INT8, TensorShape({0}));
  }
  // x and the scales of its rows, where some have one; else no scales.
  static absl::Status DivideRows(OpKernelContext* ctx,
                                 const EncodeParams& params,
                                 const ParallelFor& threads, Tensor* x,
                                 Tensor* scales) {
    const int64_t rows = RowsOf(params.n, params.channels);
    absl::Status s =
        ctx->allocate_temp(tensorflow::DT_INT8, TensorShape({rows}), scales);
    if (!s.ok()) return s;
    int8_t* const found = scales->flat<int8_t>().data();
    const RowsOfTensor of = {Data(*x), params.dtype, rows, params.channels};
    if (!FindRowScales(of, threads, found)) {
      *scales = NoScales();
      return s;
    }
    Tensor divided;
    s = ctx->allocate_temp(x->dtype(), x->shape(), &divided);
    if (!s.ok()) return s;
    RowScales(params.channels, found)
        .DivideAll(of, threads, MutableData(&divided));
    *x = divided;
    return s;
  }
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
    const ParallelFor threads = WorkerThreads(ctx);
    StreamIn in = StreamInOf(stream, *x_hat);
    const int64_t channels = Channels(shape), rows = RowsOf(in.n, channels);
    const int8_t* const scales = TakeRowScales(rows, &in);
    void* const out = MutableData(x_hat);
    OP_REQUIRES_OK(ctx, ToAbsl(DecodeStream(in, out, threads)));
    if (scales == nullptr) return;
    RowScales(channels, scales)
        .MultiplyAll({out, in.dtype, rows, channels}, threads, out);
  }
};

class StreamMaskGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckOneGradient(ctx));
    const Tensor& stream = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({1}, 0, dy.shape(), &dx));
    StreamIn in = StreamInOf(stream, dy);
    TakeRowScales(RowsOf(dy.NumElements(), Channels(dy.shape())), &in);
    OP_REQUIRES_OK(ctx, ToAbsl(StreamMaskGradient(in, Data(dy), MutableData(dx),
                                                  WorkerThreads(ctx))));
  }
};

// The executor runs an op once all its inputs are there.
class FenceOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    for (int i = 0; i < ctx->num_inputs(); ++i)
      ctx->set_output(i, ctx->input(i));
  }
};

COMPTRAIN_REGISTER("Compress", tensorflow::DEVICE_CPU, CompressOp)
COMPTRAIN_REGISTER("Decompress", tensorflow::DEVICE_CPU, DecompressOp)
COMPTRAIN_REGISTER("StreamMaskGrad", tensorflow::DEVICE_CPU, StreamMaskGradOp)
REGISTER_KERNEL_BUILDER(Name("Comptrain>Fence").Device(tensorflow::DEVICE_CPU),
                        FenceOp);
// It reads nothing, so it needs no GPU code.
REGISTER_KERNEL_BUILDER(Name("Comptrain>Fence").Device(tensorflow::DEVICE_GPU),
                        FenceOp);

}  // namespace
}  // namespace comptrain
