#include "cc/codec/plane_layout.h"

#include <cfloat>
#include <cmath>
#include <string>

#include "cc/codec/stream_check.h"

namespace comptrain {
namespace plane {
Coding CodingOf(const PlaneParams& params) {
  return params.dither     ? Coding::kDither
         : params.mid_rise ? Coding::kMidRise
                           : Coding::kPlain;
}

Coding CodingOf(const StreamHeader& h) {
  return (h.flags & kDither)    ? Coding::kDither
         : (h.flags & kMidRise) ? Coding::kMidRise
                                : Coding::kPlain;
}

uint8_t FlagsOf(Coding coding, bool flat) {
  const int flag = coding == Coding::kDither    ? kDither
                   : coding == Coding::kMidRise ? kMidRise
                                                : 0;
  return static_cast<uint8_t>(flag | (flat ? kFlat : 0));
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
  // Doubling is exact, so the product is rounded once.
  Quantizer q = QuantizerOfStep(dtype, coding, 2 * eb * (1.0f - 0x1p-13f));
  q.eb = eb;
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

Status OpenStream(const uint8_t* stream, size_t stream_bytes, int64_t n,
                  StreamView* view) {
  constexpr CodecId kId = CodecId::kPlane;
  StreamHeader h;
  Status s = ReadHeader(kId, stream, stream_bytes, n, &h);
  if (s.ok()) s = CheckQuantizer(kId, h);
  if (!s.ok()) return s;
  if (h.log2_pixels != kLog2Pixels) {
    return BadHeader(kId, "log2_pixels", std::to_string(kLog2Pixels),
                     h.log2_pixels);
  }
  view->geometry = Geometry(n, h.channels);
  const Geometry& g = view->geometry;
  if (g.flat != ((h.flags & kFlat) != 0)) {
    return BadHeader(kId, "flags", "flat (4) exactly when channels % 32 != 0",
                     h.flags);
  }
  if (static_cast<uint64_t>(g.tiles) != h.n_chunks) {
    return BadHeader(kId, "n_chunks",
                     "the number of tiles, " + std::to_string(g.tiles),
                     h.n_chunks);
  }
  view->sections = Sections(g);
  const Sections& at = view->sections;
  s = CheckSections(kId, h, at.directory, at.table, at.payload);
  if (!s.ok()) return s;
  if (!AllZero(stream + at.directory + 2 * g.tiles, stream + at.table) ||
      !AllZero(stream + at.table + 4 * g.ranges(), stream + at.payload)) {
    return BadField(kId, "padding between sections", "zero", "other bytes");
  }
  view->stream = stream;
  view->payload_words = (stream_bytes - at.payload) / 4;
  view->quantizer = QuantizerOfStep(static_cast<DType>(h.dtype),
                                    CodingOf(h), h.step);
  return {};
}

}  // namespace plane
}  // namespace comptrain
