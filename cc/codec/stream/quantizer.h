// How the values of a stream become codes: its step, its coding and its type.
#pragma once

#include <cstdint>

#include "cc/codec/stream/params.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

// Make a well-mixed number of a counter.
constexpr uint32_t kDitherMix1 = 0x9e3779b1, kDitherMix2 = 0x85ebca77;

// The arithmetic of a stream.
struct Quantizer {
  DType dtype = DType::kF32;
  Coding coding = Coding::kPlain;
  // For dither: the number of the first value of a tile or chunk.
  uint32_t counter = 0;
  float step = 0;
  float inv = 0;
  float eb = 0;
  // Largest |x_hat| that is finite after rounding to dtype is below this.
  float limit = 0;
  // Check the bound of every value, not only in tiles with a large code:
  // set where even a small code may decode beyond the type's range.
  bool verify_all = false;
};

// The arithmetic holds where 1 / step and all values but zero are normal
// numbers: TensorFlow's threads flush others to zero.
bool BoundSupported(Coding coding, float eb);
Coding CodingOf(const EncodeParams& params);
Coding CodingOf(const StreamHeader& h);
uint8_t FlagsOf(Coding coding, bool flat);
Quantizer MakeQuantizer(DType dtype, Coding coding, float eb);
// For decoding: without eb.
Quantizer QuantizerOfStep(DType dtype, Coding coding, float step);

// For the values from number `first` on.
static inline Quantizer CountedFrom(const Quantizer& quantizer, int64_t first) {
  Quantizer q = quantizer;
  q.counter = static_cast<uint32_t>(first);
  return q;
}

}  // namespace comptrain
