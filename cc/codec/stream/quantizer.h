// How the values of a stream become codes: its step, its coding and its type.
#pragma once

#include <cstdint>

#include "cc/codec/common/half.h"
#include "cc/codec/common/host_device.h"
#include "cc/codec/stream/params.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

// Make a well-mixed number of a counter.
constexpr uint32_t kDitherMix1 = 0x9e3779b1, kDitherMix2 = 0x85ebca77;

// The scales of what lies side by side in a stream, as arrays: see ScaleTable.
struct LaneScales {
  const float* step = nullptr;
  const float* inv = nullptr;
  const float* eb = nullptr;
  const int32_t* centre = nullptr;
  // From one row of values to the next: so many further on, less `period` where
  // that is reached.
  int32_t advance = 0;
  int32_t period = 1;
};

// The arithmetic of a stream; or, from OfChannel, of one of its channels.
struct Quantizer {
  DType dtype = DType::kF32;
  Coding coding = Coding::kPlain;
  // For dither: the number of the first value of a tile or chunk, and that of
  // the first one of all.
  uint32_t counter = 0;
  uint32_t seed = 0;
  float step = 0;
  float inv = 0;
  float eb = 0;
  // Largest |x_hat| that is finite after rounding to dtype is below this.
  float limit = 0;
  // Check the bound of every value, not only in tiles with a large code:
  // set where even a small code may decode beyond the type's range.
  bool verify_all = false;
  // What is taken off a code; of a stream the largest magnitude of all.
  int32_t centre = 0;
  // On a CPU: of all lanes, and which of them the first one of a row is.
  LaneScales lanes;
  int32_t first_lane = 0;
};

// The arithmetic holds where 1 / step and all values but zero are normal
// numbers: TensorFlow's threads flush others to zero.
bool BoundSupported(Coding coding, float eb);
Coding CodingOf(const EncodeParams& params);
Coding CodingOf(const StreamHeader& h);
uint8_t FlagsOf(Coding coding, bool flat, const ChannelScales& scales);
// Fills in flags, step, inv and seed.
void SetQuantizer(const Quantizer& q, bool flat, const ChannelScales& scales,
                  StreamHeader* h);
Quantizer MakeQuantizer(DType dtype, Coding coding, float eb);
// With the seed.
Quantizer QuantizerOf(const EncodeParams& params);
// For decoding: without eb.
Quantizer QuantizerOfStep(DType dtype, Coding coding, float step);
Quantizer QuantizerOf(const StreamHeader& h);

// A channel's bound is at most the stream's. What a large channel could gain is
// a few bits of its own; its error would be most of that of all.
constexpr int kLeastExponent = -100, kLargestExponent = 0;

// In the flat view: lanes from a row of 32 values to the next, of those that
// repeat after `period`.
COMPTRAIN_HD constexpr int64_t FlatAdvance(int64_t period) {
  return 32 % period;
}

// Whether a stream may have it: a step that can be halved, and its inverse,
// stay normal numbers.
COMPTRAIN_HD static inline bool ExponentIsRight(float step, int exponent) {
  const int of_step = static_cast<int>(FloatBits(step) >> 23) - 127 + exponent;
  return exponent >= kLeastExponent && exponent <= kLargestExponent &&
         of_step > -126 && of_step < 126;
}

// Of a stream's channel. Powers of two keep steps and bounds exact.
COMPTRAIN_HD static inline Quantizer OfChannel(const Quantizer& stream,
                                               int exponent, int centre) {
  Quantizer q = stream;
  const float scale = BitsFloat(static_cast<uint32_t>(127 + exponent) << 23);
  q.step *= scale;
  q.inv *= BitsFloat(static_cast<uint32_t>(127 - exponent) << 23);
  q.eb *= scale;
  q.centre = centre;
  q.verify_all = !(257.0f * q.step < q.limit);
  return q;
}

// Of a lane of a row, on a CPU.
static inline Quantizer OfLane(const Quantizer& rows, int row, int lane) {
  const LaneScales& of = rows.lanes;
  const int64_t at =
      (rows.first_lane + int64_t{of.advance} * row) % of.period + lane;
  Quantizer q = rows;
  q.step = of.step[at];
  q.inv = of.inv[at];
  q.eb = of.eb[at];
  q.centre = of.centre[at];
  return q;
}

// For the values from number `first` on, in rows whose first lane is number
// `lane` of the table of scales.
static inline Quantizer CountedFrom(const Quantizer& quantizer, int64_t first,
                                    int64_t lane) {
  Quantizer q = quantizer;
  q.counter = quantizer.seed + static_cast<uint32_t>(first);
  q.first_lane = static_cast<int32_t>(lane);
  return q;
}

}  // namespace comptrain
