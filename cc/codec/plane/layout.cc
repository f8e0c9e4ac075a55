#include "cc/codec/plane/layout.h"

#include <string>

#include "cc/codec/stream/check_stream.h"

namespace comptrain::plane {

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
  view->payload_words =
      (stream_bytes - ScaleBytes(h.flags, h.channels) - at.payload) / 4;
  StoredScales stored;
  s = stored.Open(kId, h, stream);
  if (!s.ok()) return s;
  const ChannelScales scales = stored.scales();
  const Quantizer quantizer = QuantizerOf(h);
  view->lanes = LanesOf(g, scales, h.channels);
  view->scales = ScalesOf(view->lanes, quantizer, scales);
  view->quantizer = view->scales.Of(quantizer, view->lanes);
  return {};
}

}  // namespace comptrain::plane
