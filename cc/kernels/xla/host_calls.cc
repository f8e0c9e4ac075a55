// What steps of a CPU call.
#include "cc/codec/fixed_rate/fixed_rate.h"
#include "cc/codec/layers/batch_norm.h"
#include "cc/codec/masks/pool.h"
#include "cc/kernels/xla/call_arguments.h"
#include "cc/kernels/xla/calls.h"
#include "cc/kernels/xla/host_pool.h"

namespace comptrain::hlo {
namespace {

ffi::Error Encode(ffi::ThreadPool pool, ffi::AnyBuffer x, Floats state,
                  ffi::Result<Bytes> stream, ffi::Result<Floats> next,
                  ffi::Dictionary attributes) {
  FixedRateEncode(TensorOf(x, attributes), InputOf(x, state, attributes),
                  {stream->typed_data(), next->typed_data()}, OnPool(pool));
  return ffi::Error::Success();
}

ffi::Error Decode(ffi::ThreadPool pool, Bytes stream, Floats state,
                  ffi::Result<ffi::AnyBuffer> x_hat,
                  ffi::Dictionary attributes) {
  FixedRateDecode(
      {TensorOf(*x_hat, attributes), stream.typed_data(), state.typed_data()},
      x_hat->untyped_data(), OnPool(pool));
  return ffi::Error::Success();
}

ffi::Error MaskGradient(ffi::ThreadPool pool, ffi::RemainingArgs operands,
                        ffi::Result<ffi::AnyBuffer> dx,
                        ffi::Dictionary attributes) {
  FixedRateMaskGradient({TensorOf(*dx, attributes),
                         operands.get<Bytes>(0)->typed_data(), nullptr},
                        TermsOf(operands), dx->untyped_data(), OnPool(pool));
  return ffi::Error::Success();
}

ffi::Error BatchNormGradient(ffi::ThreadPool pool, ffi::RemainingArgs operands,
                             ffi::Result<ffi::AnyBuffer> dx,
                             ffi::Result<Floats> dgamma,
                             ffi::Result<Floats> dbeta,
                             ffi::Dictionary attributes) {
  const ffi::AnyBuffer dy = *operands.get<ffi::AnyBuffer>(2);
  BatchNormGradientOfFixedRate(
      {TensorOf(dy, attributes), operands.get<Bytes>(0)->typed_data(),
       operands.get<Floats>(1)->typed_data()},
      dy.untyped_data(), ChannelsOf(operands),
      {dx->untyped_data(), dgamma->typed_data(), dbeta->typed_data()},
      OnPool(pool));
  return ffi::Error::Success();
}

ffi::Error MaxPool(ffi::ThreadPool pool, ffi::AnyBuffer x,
                   ffi::Result<ffi::AnyBuffer> y, ffi::Result<Bytes> index,
                   ffi::Dictionary attributes) {
  MaxPoolIndex(x.untyped_data(), DTypeOf(x), PoolShapeOf(attributes),
               y->untyped_data(), index->typed_data(), OnPool(pool));
  return ffi::Error::Success();
}

ffi::Error MaxPoolGradientCall(ffi::ThreadPool pool, Bytes index,
                               ffi::AnyBuffer dy,
                               ffi::Result<ffi::AnyBuffer> dx,
                               ffi::Dictionary attributes) {
  MaxPoolGradient(index.typed_data(), DTypeOf(dy), PoolShapeOf(attributes),
                  dy.untyped_data(), dx->untyped_data(), OnPool(pool));
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kEncodeHandler, Encode,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<Floats>()
                           .Ret<Bytes>()
                           .Ret<Floats>()
                           .Attrs());
XLA_FFI_DEFINE_HANDLER(kDecodeHandler, Decode,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<Bytes>()
                           .Arg<Floats>()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs());
XLA_FFI_DEFINE_HANDLER(kMaskGradientHandler, MaskGradient,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs());
XLA_FFI_DEFINE_HANDLER(kBatchNormGradientHandler, BatchNormGradient,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<Floats>()
                           .Ret<Floats>()
                           .Attrs());

XLA_FFI_DEFINE_HANDLER(kMaxPoolHandler, MaxPool,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<Bytes>()
                           .Attrs());
XLA_FFI_DEFINE_HANDLER(kMaxPoolGradientHandler, MaxPoolGradientCall,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<Bytes>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs());

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kEncode, "Host", kEncodeHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kDecode, "Host", kDecodeHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kMaskGradient, "Host",
                         kMaskGradientHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kBatchNormGradient, "Host",
                         kBatchNormGradientHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kMaxPool, "Host",
                         kMaxPoolHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kMaxPoolGradient, "Host",
                         kMaxPoolGradientHandler);

}  // namespace
}  // namespace comptrain::hlo
