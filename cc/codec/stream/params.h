// What the encoders of all codecs are told of a tensor, and tell of it.
#pragma once

#include <cstdint>

#include "cc/codec/stream/stream.h"

namespace comptrain {

// What the channels of a tensor have of their own, in memory of the host or of
// the device, as the tensor is. Owned by the caller, alive until the stream is
// written.
struct ChannelScales {
  // A channel's step is the stream's times 2 to the power of this: [channels];
  // null: 0 for all.
  const int8_t* exponents = nullptr;
  // Steps that are taken off each code of a channel: [channels]; null: 0 for
  // all. Only with dither, where code 0 is left to zeros.
  const int16_t* centres = nullptr;
};

// A codec reads what concerns it: zvc, which is lossless, only the first three.
struct EncodeParams {
  DType dtype = DType::kF32;
  int64_t n = 0;         // elements
  int64_t channels = 1;  // size of the last dimension; divides n
  // Absolute error bound, a positive normal number: of a channel whose exponent
  // is 0.
  float eb = 0;
  ChannelScales scales;
  bool mid_rise = false;  // the stream carries the mask x != 0
  // Unbiased, the error independent of the data; carries the mask in any case.
  bool dither = false;
  // For dither: where its numbers begin. Another one for each step, or what a
  // batch has again keeps its error.
  uint32_t seed = 0;
  // Pixels from one to the one above it: the size of the dimension before the
  // channels of an image. 0: no pixel is above another. Only a hint of rans: it
  // changes the ratio, never the promise.
  int64_t width = 0;
  // rans counts frequencies in tensors of so many values, where they take 1 KB;
  // the built-in ones serve smaller tensors.
  int64_t counted_from = 1 << 16;
};

}  // namespace comptrain
