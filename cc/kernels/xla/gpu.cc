// What steps of a GPU call. All that they do is to launch
// kernels, so that XLA may record them (command buffers).
#include "cc/codec/fixed_rate_gpu/gpu.h"

#include "cc/codec/layers/batch_norm_gpu.h"
#include "cc/codec/masks/gpu.h"
#include "cc/kernels/xla/call_arguments.h"
#include "cc/kernels/xla/calls.h"

namespace comptrain::hlo {
namespace {

using CudaStream = ffi::PlatformStream<CUstream_st*>;

ffi::Error ErrorOf(const Status& s) {
  return s.ok() ? ffi::Error::Success() : ffi::Error::Internal(s.message);
}

// results: the stream, the state after it, memory.
ffi::Error Encode(CUstream_st* cuda_stream, ffi::AnyBuffer x, Floats state,
                  ffi::RemainingRets results, ffi::Dictionary attributes) {
  return ErrorOf(GpuFixedRateEncode(TensorOf(x, attributes),
                                    InputOf(x, state, attributes),
                                    (*results.get<Bytes>(2))->typed_data(),
                                    {(*results.get<Bytes>(0))->typed_data(),
                                     (*results.get<Floats>(1))->typed_data()},
                                    cuda_stream));
}

// operands: the stream, the state and, where there is one, what it waits for.
ffi::Error Decode(CUstream_st* cuda_stream, ffi::RemainingArgs operands,
                  ffi::Result<ffi::AnyBuffer> x_hat,
                  ffi::Dictionary attributes) {
  return ErrorOf(GpuFixedRateDecode(
      {TensorOf(*x_hat, attributes), operands.get<Bytes>(0)->typed_data(),
       operands.get<Floats>(1)->typed_data()},
      x_hat->untyped_data(), cuda_stream));
}

ffi::Error MaskGradient(CUstream_st* cuda_stream, ffi::RemainingArgs operands,
                        ffi::Result<ffi::AnyBuffer> dx,
                        ffi::Dictionary attributes) {
  return ErrorOf(GpuFixedRateMaskGradient(
      {TensorOf(*dx, attributes), operands.get<Bytes>(0)->typed_data(),
       nullptr},
      TermsOf(operands), dx->untyped_data(), cuda_stream));
}

// operands: those of CodecCalls. results: its own, and memory.
ffi::Error BatchNormGradient(CUstream_st* cuda_stream,
                             ffi::RemainingArgs operands,
                             ffi::RemainingRets results,
                             ffi::Dictionary attributes) {
  const auto gradient = [&](int i) {
    return (*results.get<Floats>(i))->typed_data();
  };
  const ffi::AnyBuffer dy = *operands.get<ffi::AnyBuffer>(2);
  return ErrorOf(GpuBatchNormGradientOfFixedRate(
      {TensorOf(dy, attributes), operands.get<Bytes>(0)->typed_data(),
       operands.get<Floats>(1)->typed_data()},
      dy.untyped_data(), ChannelsOf(operands),
      (*results.get<Bytes>(3))->typed_data(),
      {(*results.get<ffi::AnyBuffer>(0))->untyped_data(), gradient(1),
       gradient(2)},
      cuda_stream));
}

ffi::Error MaxPool(CUstream_st* cuda_stream, ffi::AnyBuffer x,
                   ffi::Result<ffi::AnyBuffer> y, ffi::Result<Bytes> index,
                   ffi::Dictionary attributes) {
  return ErrorOf(GpuMaxPoolIndex(x.untyped_data(), DTypeOf(x),
                                 PoolShapeOf(attributes), y->untyped_data(),
                                 index->typed_data(), cuda_stream));
}

ffi::Error MaxPoolGradient(CUstream_st* cuda_stream, Bytes index,
                           ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> dx,
                           ffi::Dictionary attributes) {
  return ErrorOf(GpuMaxPoolGradient(index.typed_data(), DTypeOf(dy),
                                    PoolShapeOf(attributes), dy.untyped_data(),
                                    dx->untyped_data(), cuda_stream));
}

XLA_FFI_DEFINE_HANDLER(kEncodeHandler, Encode,
                       ffi::Ffi::Bind()
                           .Ctx<CudaStream>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<Floats>()
                           .RemainingRets()
                           .Attrs(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kDecodeHandler, Decode,
                       ffi::Ffi::Bind()
                           .Ctx<CudaStream>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kMaskGradientHandler, MaskGradient,
                       ffi::Ffi::Bind()
                           .Ctx<CudaStream>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(
    kBatchNormGradientHandler, BatchNormGradient,
    ffi::Ffi::Bind().Ctx<CudaStream>().RemainingArgs().RemainingRets().Attrs(),
    {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(kMaxPoolHandler, MaxPool,
                       ffi::Ffi::Bind()
                           .Ctx<CudaStream>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<Bytes>()
                           .Attrs(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kMaxPoolGradientHandler, MaxPoolGradient,
                       ffi::Ffi::Bind()
                           .Ctx<CudaStream>()
                           .Arg<Bytes>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs(),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kEncode, "CUDA", kEncodeHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kDecode, "CUDA", kDecodeHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kMaskGradient, "CUDA",
                         kMaskGradientHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kBatchNormGradient, "CUDA",
                         kBatchNormGradientHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kMaxPool, "CUDA",
                         kMaxPoolHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kMaxPoolGradient, "CUDA",
                         kMaxPoolGradientHandler);

}  // namespace
}  // namespace comptrain::hlo
