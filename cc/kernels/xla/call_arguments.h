// What calls are handed when a step runs.
#pragma once

#include "cc/codec/fixed_rate/fixed_rate.h"
#include "cc/codec/layers/batch_norm.h"
#include "cc/codec/masks/pool.h"
#include "cc/codec/stream/bound.h"
#include "xla/ffi/api/ffi.h"

// Of xla/ffi/ffi_api.h, which includes what wheels of TensorFlow do not have.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace comptrain::hlo {

namespace ffi = xla::ffi;
using Bytes = ffi::Buffer<ffi::U8>;
using Floats = ffi::Buffer<ffi::F32>;

inline DType DTypeOf(const ffi::AnyBuffer& buffer) {
  return buffer.element_type() == ffi::BF16  ? DType::kBF16
         : buffer.element_type() == ffi::F16 ? DType::kF16
                                             : DType::kF32;
}

inline FixedRateTensor TensorOf(const ffi::AnyBuffer& buffer,
                                const ffi::Dictionary& attributes) {
  FixedRateTensor of;
  of.coding.bits = *attributes.get<int32_t>("bits");
  of.coding.mid_rise = *attributes.get<int32_t>("mid_rise") != 0;
  of.coding.row_scales = *attributes.get<int32_t>("row_scales") != 0;
  of.dims.assign(buffer.dimensions().begin(), buffer.dimensions().end());
  if (of.dims.empty()) of.dims.push_back(1);
  of.dtype = DTypeOf(buffer);
  return of;
}

inline FixedRateInput InputOf(const ffi::AnyBuffer& x, const Floats& state,
                              const ffi::Dictionary& attributes) {
  BoundRule bound;
  bound.relative_bound = *attributes.get<float>("relative_bound");
  bound.decay = *attributes.get<float>("decay");
  bound.of_range = *attributes.get<int32_t>("of_range") != 0;
  return {x.untyped_data(), state.typed_data(), bound,
          *attributes.get<int32_t>("group_statistics") != 0};
}

// operands: the stream and dy, one or two.
inline GradientTerms TermsOf(const ffi::RemainingArgs& operands) {
  const auto term = [&](int i) {
    return operands.get<ffi::AnyBuffer>(i)->untyped_data();
  };
  return {term(1), operands.size() > 2 ? term(2) : nullptr};
}

// operands: those of CodecCalls::BatchNormGradient.
inline BatchNormChannels ChannelsOf(const ffi::RemainingArgs& operands) {
  const auto floats = [&](int i) {
    return operands.get<Floats>(i)->typed_data();
  };
  return {operands.get<ffi::AnyBuffer>(2)->dimensions().back(), floats(3),
          floats(4), floats(5)};
}

inline PoolShape PoolShapeOf(const ffi::Dictionary& attributes) {
  const auto numbers = *attributes.get<ffi::Span<const int64_t>>("pool");
  PoolShape p;
  p.batch = numbers[0];
  p.channels = numbers[1];
  size_t at = 2;
  for (int64_t* of :
       {p.in_size, p.out_size, p.window, p.stride, p.pad_before}) {
    for (int d = 0; d < 3; ++d) of[d] = numbers[at++];
  }
  return p;
}

}  // namespace comptrain::hlo
