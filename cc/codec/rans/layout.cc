#include "cc/codec/rans/layout.h"

#include <string>

#include "cc/codec/stream/check_stream.h"

namespace comptrain::rans {
namespace {

constexpr CodecId kId = CodecId::kRans;

Status CheckShape(const StreamHeader& h, const Geometry& g) {
  if (g.flat != ((h.flags & kFlat) != 0)) {
    return BadHeader(kId, "flags", "flat (4) exactly when channels % 8 != 0",
                     h.flags);
  }
  if (h.log2_pixels != static_cast<uint32_t>(g.log2_pixels)) {
    return BadHeader(kId, "log2_pixels", std::to_string(g.log2_pixels),
                     h.log2_pixels);
  }
  if (static_cast<uint64_t>(g.chunks) != h.n_chunks) {
    return BadHeader(kId, "n_chunks",
                     "the number of chunks, " + std::to_string(g.chunks),
                     h.n_chunks);
  }
  return {};
}

// Fills view->sections and view->model.
Status ReadTable(const uint8_t* stream, size_t stream_bytes,
                 const StreamHeader& h, StreamView* view) {
  const Geometry& g = view->geometry;
  const uint64_t table = Sections(g, false).table;
  TableHead head = {};
  if (h.table_offset == table && table + sizeof head <= stream_bytes) {
    std::memcpy(&head, stream + table, sizeof head);
  }
  if (head.table > kCountedTable) {
    return BadField(kId, "table field table",
                    "0 (one-sided), 1 (two-sided) or 2 (counted)",
                    std::to_string(head.table));
  }
  const bool counted = head.table == kCountedTable;
  view->sections = Sections(g, counted);
  const Sections& at = view->sections;
  const Status s = CheckSections(kId, h, at.directory, at.table, at.payload);
  if (!s.ok()) return s;
  if (head.shift > kMaxShift) {
    return BadField(kId, "table field shift",
                    "at most " + std::to_string(kMaxShift),
                    std::to_string(head.shift));
  }
  if (head.stride >> g.log2_pixels != 0) {
    return BadField(kId, "table field stride",
                    "less than the pixels of a chunk",
                    std::to_string(head.stride));
  }
  if (!AllZero(head.padding, head.padding + sizeof head.padding) ||
      !AllZero(stream + at.directory + 4 * g.chunks, stream + at.table)) {
    return BadField(kId, "padding", "zero", "other bytes");
  }
  uint16_t freq[kContexts * kTokens];
  if (counted) {
    std::memcpy(freq, stream + table + sizeof head, sizeof freq);
  }
  if (!SetFrequencies(counted ? freq : kBuiltInFrequencies[head.table],
                      &view->model)) {
    return BadField(kId, "table frequencies",
                    "positive with a sum of 4096 in each context", "others");
  }
  view->model.stride = static_cast<int>(head.stride);
  view->model.shift = head.shift;
  return {};
}

}  // namespace

Status OpenStream(const uint8_t* stream, size_t stream_bytes, int64_t n,
                  StreamView* view) {
  StreamHeader h;
  Status s = ReadHeader(kId, stream, stream_bytes, n, &h);
  if (s.ok()) s = CheckQuantizer(kId, h);
  if (!s.ok()) return s;
  view->geometry = Geometry(n, h.channels);
  s = CheckShape(h, view->geometry);
  if (s.ok()) s = ReadTable(stream, stream_bytes, h, view);
  if (!s.ok()) return s;
  view->stream = stream;
  view->payload_words = (stream_bytes - ScaleBytes(h.flags, h.channels) -
                         view->sections.payload) /
                        4;
  StoredScales stored;
  s = stored.Open(kId, h, stream);
  if (!s.ok()) return s;
  const ChannelScales scales = stored.scales();
  const Quantizer quantizer = QuantizerOf(h);
  view->lanes = LanesOf(view->geometry, scales, h.channels);
  view->scales = ScalesOf(view->geometry, view->lanes, quantizer, scales);
  view->quantizer = view->scales.Of(quantizer, view->lanes);
  return {};
}

}  // namespace comptrain::rans
