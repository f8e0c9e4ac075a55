#include "cc/codec/stream/quantizer.h"

#include <cfloat>
#include <cmath>

#include "cc/codec/stream/bound.h"

namespace comptrain {

Coding CodingOf(const EncodeParams& params) {
  return params.dither     ? Coding::kDither
         : params.mid_rise ? Coding::kMidRise
                           : Coding::kPlain;
}

Coding CodingOf(const StreamHeader& h) {
  return (h.flags & kDither)    ? Coding::kDither
         : (h.flags & kMidRise) ? Coding::kMidRise
                                : Coding::kPlain;
}

uint8_t FlagsOf(Coding coding, bool flat, const ChannelScales& scales) {
  const int flag = coding == Coding::kDither    ? kDither
                   : coding == Coding::kMidRise ? kMidRise
                                                : 0;
  return static_cast<uint8_t>(flag | (flat ? kFlat : 0) |
                              (scales.exponents ? kExponents : 0) |
                              (scales.centres ? kCentres : 0));
}

void SetQuantizer(const Quantizer& q, bool flat, const ChannelScales& scales,
                  StreamHeader* h) {
  h->flags = FlagsOf(q.coding, flat, scales);
  h->step = q.step;
  h->inv = q.inv;
  h->seed = q.seed;
}

Quantizer QuantizerOfStep(DType dtype, Coding coding, float step) {
  Quantizer q;
  q.dtype = dtype;
  q.coding = coding;
  q.step = step;
  q.inv = 1.0f / step;
  q.limit = dtype == DType::kF32    ? HUGE_VALF
            : dtype == DType::kBF16 ? 0x1.ffp+127f
                                    : 65520.0f;
  q.verify_all = !(257.0f * step < q.limit);
  return q;
}

Quantizer MakeQuantizer(DType dtype, Coding coding, float eb) {
  Quantizer q = QuantizerOfStep(dtype, coding, eb * kStepOverBound);
  q.eb = eb;
  return q;
}

Quantizer QuantizerOf(const EncodeParams& params) {
  Quantizer q = MakeQuantizer(params.dtype, CodingOf(params), params.eb);
  q.seed = q.coding == Coding::kDither ? params.seed : 0;
  return q;
}

Quantizer QuantizerOf(const StreamHeader& h) {
  Quantizer q =
      QuantizerOfStep(static_cast<DType>(h.dtype), CodingOf(h), h.step);
  q.seed = h.seed;
  return q;
}

bool BoundSupported(Coding coding, float eb) {
  if (!std::isnormal(eb) || eb < 0) return false;
  const Quantizer q = MakeQuantizer(DType::kF32, coding, eb);
  // Of the smallest value, in steps; dithers are odd multiples of 2^-17.
  const float smallest = coding == Coding::kDither ? 0x1p-17f : 0.5f;
  return std::isfinite(q.step) && smallest * q.step >= FLT_MIN &&
         q.inv >= FLT_MIN;
}

}  // namespace comptrain
