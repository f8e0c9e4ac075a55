// Subtractive dither, as the codecs of the executor have it.
#pragma once

#include <vector>

#include "cc/codec/stream/quantizer.h"
#include "cc/kernels/xla/hlo.h"
#include "cc/kernels/xla/packing.h"

namespace comptrain::hlo {

// Odd, so that no two of the 2^24 steps of a tensor count from the same number.
constexpr uint32_t kNumbersAStep = 0x9e3779b9;

// What the numbers of a tensor's values count from, u32. steps: kSteps of the
// state after it was encoded.
inline XlaOp DitherSeed(XlaOp steps) {
  const XlaOp whole = xla::ConvertElementType(steps, xla::U32);
  return whole * xla::FullLike(whole, kNumbersAStep);
}

// DitherOf (quantize.h) in steps, f32, for a tensor of that shape. Numbers are
// made of the places along each dimension: one counter for all, reshaped, would
// be a tensor in memory where XLA lays values out otherwise. Dimension after
// dimension, since XLA would keep each one's multiples in memory.
inline XlaOp Dither(XlaOp seed, absl::Span<const int64_t> dims) {
  xla::XlaBuilder* b = seed.builder();
  const auto along = [&](int d) {
    return xla::Iota(b, xla::ShapeUtil::MakeShape(xla::U32, dims), d);
  };
  XlaOp h = along(0);
  for (int d = 1; d < static_cast<int>(dims.size()); ++d) {
    h = h * xla::FullLike(h, static_cast<uint32_t>(dims[d])) + along(d);
  }
  h = h + xla::Broadcast(seed, dims);
  h = h * xla::FullLike(h, kDitherMix1);
  h = xla::Xor(h, RightShifted(h, 15));
  h = h * xla::FullLike(h, kDitherMix2);
  XlaOp offset = xla::BitcastConvertType(h, xla::S32);
  offset = xla::ShiftRightArithmetic(offset, xla::FullLike(offset, 15));
  offset = F32(xla::Or(offset, xla::FullLike(offset, 1)));
  return offset * xla::FullLike(offset, 0x1p-17f);
}

}  // namespace comptrain::hlo
