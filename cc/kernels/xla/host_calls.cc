#include "cc/kernels/xla/host_calls.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "cc/codec/fixed_rate/fixed_rate.h"
#include "cc/codec/layers/batch_norm.h"
#include "cc/kernels/xla/host_pool.h"
#include "xla/ffi/api/ffi.h"

// Of xla/ffi/ffi_api.h, which includes what wheels of TensorFlow do not have.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace comptrain::hlo {
namespace {

namespace ffi = xla::ffi;

constexpr char kEncode[] = "comptrain_fixed_rate_encode";
constexpr char kDecode[] = "comptrain_fixed_rate_decode";
constexpr char kMaskGradient[] = "comptrain_fixed_rate_mask_gradient";
constexpr char kBatchNormGradient[] =
    "comptrain_fixed_rate_batch_norm_gradient";

// --- In the program ---------------------------------------------------------

std::string Attributes(const FixedRateCoding& coding) {
  return absl::StrFormat("bits = %d : i32, mid_rise = %d : i32", coding.bits,
                         coding.mid_rise);
}

std::string Attributes(const HostEncoding& how) {
  return absl::StrFormat(
      "%s, relative_bound = %.9e : f32, decay = %.9e : f32, of_range = %d : "
      "i32, group_statistics = %d : i32",
      Attributes(how.coding), how.bound.relative_bound, how.bound.decay,
      how.bound.of_range, how.group_statistics);
}

xla::Shape RowMajor(const xla::Shape& shape) {
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(shape.element_type(),
                                                       shape.dimensions());
}
xla::Shape ShapeOf(XlaOp op) {
  return RowMajor(op.builder()->GetShape(op).value());
}

struct Call {
  const char* target;
  std::string attributes;
  std::vector<XlaOp> operands;
  // Of the first result: the operand whose place it takes; below 0: none.
  int64_t in_place_of = -1;
};

std::vector<XlaOp> Made(const Call& call, std::vector<xla::Shape> results) {
  std::vector<xla::Shape> shapes;
  for (const XlaOp& operand : call.operands) shapes.push_back(ShapeOf(operand));
  const bool is_one = results.size() == 1;
  const xla::Shape shape =
      is_one ? results[0] : xla::ShapeUtil::MakeTupleShape(results);
  std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>>
      aliases;
  if (call.in_place_of >= 0) {
    aliases.push_back({is_one ? xla::ShapeIndex{} : xla::ShapeIndex{0},
                       {call.in_place_of, {}}});
  }
  const XlaOp made = xla::CustomCallWithLayout(
      call.operands[0].builder(), call.target, call.operands, shape, shapes,
      absl::StrFormat("{%s}", call.attributes), /*has_side_effect=*/false,
      aliases, /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  if (is_one) return {made};
  std::vector<XlaOp> parts;
  for (size_t i = 0; i < results.size(); ++i) {
    parts.push_back(xla::GetTupleElement(made, static_cast<int64_t>(i)));
  }
  return parts;
}

// --- When it runs -----------------------------------------------------------

FixedRateTensor TensorOf(ffi::AnyBuffer buffer, ffi::Dictionary attributes) {
  FixedRateTensor of;
  of.coding.bits = *attributes.get<int32_t>("bits");
  of.coding.mid_rise = *attributes.get<int32_t>("mid_rise") != 0;
  of.dims.assign(buffer.dimensions().begin(), buffer.dimensions().end());
  if (of.dims.empty()) of.dims.push_back(1);
  of.dtype = buffer.element_type() == ffi::BF16  ? DType::kBF16
             : buffer.element_type() == ffi::F16 ? DType::kF16
                                                 : DType::kF32;
  return of;
}

using Bytes = ffi::Buffer<ffi::U8>;
using Floats = ffi::Buffer<ffi::F32>;

ffi::Error Encode(ffi::ThreadPool pool, ffi::AnyBuffer x, Floats state,
                  ffi::Result<Bytes> stream, ffi::Result<Floats> next,
                  ffi::Dictionary attributes) {
  BoundRule bound;
  bound.relative_bound = *attributes.get<float>("relative_bound");
  bound.decay = *attributes.get<float>("decay");
  bound.of_range = *attributes.get<int32_t>("of_range") != 0;
  const FixedRateInput in = {x.untyped_data(), state.typed_data(), bound,
                             *attributes.get<int32_t>("group_statistics") != 0};
  FixedRateEncode(TensorOf(x, attributes), in,
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

ffi::Error MaskGradient(ffi::ThreadPool pool, Bytes stream, ffi::AnyBuffer dy,
                        ffi::Result<ffi::AnyBuffer> dx,
                        ffi::Dictionary attributes) {
  FixedRateMaskGradient(
      {TensorOf(dy, attributes), stream.typed_data(), nullptr},
      dy.untyped_data(), dx->untyped_data(), OnPool(pool));
  return ffi::Error::Success();
}

ffi::Error BatchNormGradient(ffi::ThreadPool pool, ffi::RemainingArgs operands,
                             ffi::Result<ffi::AnyBuffer> dx,
                             ffi::Result<Floats> dgamma,
                             ffi::Result<Floats> dbeta,
                             ffi::Dictionary attributes) {
  const auto floats = [&](int i) {
    return operands.get<Floats>(i)->typed_data();
  };
  const ffi::AnyBuffer dy = *operands.get<ffi::AnyBuffer>(2);
  BatchNormChannels of;
  of.channels = dy.dimensions().back();
  of.gamma = floats(3);
  of.mean = floats(4);
  of.inv_std = floats(5);
  BatchNormGradientOfFixedRate(
      {TensorOf(dy, attributes), operands.get<Bytes>(0)->typed_data(),
       floats(1)},
      dy.untyped_data(), of,
      {dx->untyped_data(), dgamma->typed_data(), dbeta->typed_data()},
      OnPool(pool));
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
                           .Arg<Bytes>()
                           .Arg<ffi::AnyBuffer>()
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

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kEncode, "Host", kEncodeHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kDecode, "Host", kDecodeHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kMaskGradient, "Host",
                         kMaskGradientHandler);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kBatchNormGradient, "Host",
                         kBatchNormGradientHandler);

}  // namespace

HostEncoded EncodeOnHost(const HostEncoding& how, XlaOp x, XlaOp state) {
  std::vector<int64_t> dims = Dims(x);
  if (dims.empty()) dims.push_back(1);
  const auto parts = Made({kEncode, Attributes(how), {x, state}},
                          {xla::ShapeUtil::MakeShapeWithDescendingLayout(
                               xla::U8, {how.coding.StreamBytes(dims)}),
                           ShapeOf(state)});
  return {parts[0], parts[1]};
}

XlaOp DecodeOnHost(const FixedRateCoding& coding, XlaOp stream, XlaOp state,
                   const xla::Shape& shape) {
  return Made({kDecode, Attributes(coding), {stream, state}},
              {RowMajor(shape)})[0];
}

XlaOp MaskGradientOnHost(const FixedRateCoding& coding, XlaOp stream,
                         XlaOp dy) {
  return Made({kMaskGradient, Attributes(coding), {stream, dy}, 1},
              {ShapeOf(dy)})[0];
}

std::vector<XlaOp> BatchNormGradientOnHost(const FixedRateCoding& coding,
                                           const std::vector<XlaOp>& operands) {
  const xla::Shape vector = ShapeOf(operands[3]);
  return Made({kBatchNormGradient, Attributes(coding), operands, 2},
              {ShapeOf(operands[2]), vector, vector});
}

}  // namespace comptrain::hlo
