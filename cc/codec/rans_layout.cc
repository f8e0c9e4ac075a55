#include "cc/codec/rans_layout.h"

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdio>
#include <string>

namespace comptrain {
namespace rans {
namespace {

// "codec B stream: <field> <rule>, got <value>"
Status BadField(const std::string& field, const std::string& rule,
                const std::string& got) {
  return Status::Damaged("codec B stream: " + field + " must be " + rule +
                         ", got " + got +
                         "; pass the bytes exactly as they were encoded");
}

Status BadHeader(const char* field, const std::string& rule,
                 const std::string& got) {
  return BadField(std::string("header field ") + field, rule, got);
}

std::string Text(uint64_t v) { return std::to_string(v); }

std::string Number(float v) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.9g", static_cast<double>(v));
  return buffer;
}

bool AllZero(const uint8_t* begin, const uint8_t* end) {
  uint8_t any = 0;
  for (; begin != end; ++begin) any |= *begin;
  return any == 0;
}

Status CheckKind(const StreamHeader& h) {
  if (h.magic != kStreamMagic) {
    return BadHeader("magic", Text(kStreamMagic), Text(h.magic));
  }
  if (h.version != kStreamVersion) {
    return BadHeader("version", Text(kStreamVersion), Text(h.version));
  }
  if (h.codec != static_cast<uint8_t>(CodecId::kRans)) {
    return BadHeader("codec", "2 (rans)", Text(h.codec));
  }
  if (h.dtype > static_cast<uint8_t>(DType::kF16)) {
    return BadHeader("dtype", "0 (float32), 1 (bfloat16) or 2 (float16)",
                     Text(h.dtype));
  }
  if (!plane::FlagsAreKnown(h.flags)) {
    return BadHeader("flags", "1 (mid-rise), 2 (dither) or 0, plus 4 (flat)",
                     Text(h.flags));
  }
  if (!AllZero(h.padding, h.padding + sizeof h.padding)) {
    return BadHeader("padding", "zero", "other bytes");
  }
  if (!(std::isnormal(h.step) && h.step > 0 && 0.5f * h.step >= FLT_MIN)) {
    return BadHeader("step", "a positive number whose half is normal",
                     Number(h.step));
  }
  const float inv = 1.0f / h.step;
  if (h.inv != inv || inv < FLT_MIN) {
    return BadHeader("inv", "1 / step = " + Number(inv) + " and normal",
                     Number(h.inv));
  }
  return {};
}

Status CheckShape(const StreamHeader& h, size_t stream_bytes, int64_t n,
                  Geometry* geometry) {
  if (n < 0 || h.n != static_cast<uint64_t>(n)) {
    return BadHeader("n", "the number of elements asked for, " +
                              std::to_string(n), Text(h.n));
  }
  if (h.channels == 0 || h.n % h.channels != 0) {
    return BadHeader("channels", "a positive divisor of n = " + Text(h.n),
                     Text(h.channels));
  }
  if (h.total_bytes != stream_bytes) {
    return BadHeader("total_bytes",
                     "the size of the stream, " + Text(stream_bytes),
                     Text(h.total_bytes));
  }
  const Geometry g(n, h.channels);
  if (g.flat != ((h.flags & kFlat) != 0)) {
    return BadHeader("flags", "flat (4) exactly when channels % 8 != 0",
                     Text(h.flags));
  }
  if (h.log2_pixels != static_cast<uint32_t>(g.log2_pixels)) {
    return BadHeader("log2_pixels", Text(g.log2_pixels), Text(h.log2_pixels));
  }
  if (static_cast<uint64_t>(g.chunks) != h.n_chunks) {
    return BadHeader("n_chunks",
                     "the number of chunks, " + std::to_string(g.chunks),
                     Text(h.n_chunks));
  }
  *geometry = g;
  return {};
}

// Fills view->sections and view->model.
Status ReadTable(const uint8_t* stream, size_t stream_bytes,
                 const StreamHeader& h, StreamView* view) {
  const Geometry& g = view->geometry;
  view->sections = Sections(g, false);
  const uint64_t table = view->sections.table;
  if (h.directory_offset != view->sections.directory) {
    return BadHeader("directory_offset", Text(view->sections.directory),
                     Text(h.directory_offset));
  }
  if (h.table_offset != table || table + sizeof(TableHead) > stream_bytes) {
    return BadHeader("table_offset", Text(table) + ", within the stream",
                     Text(h.table_offset));
  }
  TableHead head;
  std::memcpy(&head, stream + table, sizeof head);
  if (head.table > kCountedTable) {
    return BadField("table field table",
                    "0 (one-sided), 1 (two-sided) or 2 (counted)",
                    Text(head.table));
  }
  const bool counted = head.table == kCountedTable;
  view->sections = Sections(g, counted);
  const Sections& at = view->sections;
  if (h.payload_offset != at.payload || at.payload > stream_bytes ||
      (stream_bytes - at.payload) % 4 != 0) {
    return BadHeader(
        "payload_offset",
        Text(at.payload) + ", within the stream, whole words after",
        Text(h.payload_offset));
  }
  if (head.shift > kMaxShift) {
    return BadField("table field shift", "at most " + Text(kMaxShift),
                    Text(head.shift));
  }
  if (head.stride >> g.log2_pixels != 0) {
    return BadField("table field stride", "less than the pixels of a chunk",
                    Text(head.stride));
  }
  if (!AllZero(head.padding, head.padding + sizeof head.padding) ||
      !AllZero(stream + at.directory + 4 * g.chunks, stream + at.table)) {
    return BadField("padding", "zero", "other bytes");
  }
  uint16_t freq[kContexts * kTokens];
  if (counted) {
    std::memcpy(freq, stream + table + sizeof head, sizeof freq);
  }
  if (!SetFrequencies(counted ? freq : kBuiltInFrequencies[head.table],
                      &view->model)) {
    return BadField("table frequencies",
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
  if (stream == nullptr || stream_bytes < sizeof h) {
    return Status::Damaged(
        "codec B stream: it must hold a 64-byte header, got " +
        Text(stream_bytes) + " bytes; pass the whole stream");
  }
  std::memcpy(&h, stream, sizeof h);
  Status s = CheckKind(h);
  if (!s.ok()) return s;
  s = CheckShape(h, stream_bytes, n, &view->geometry);
  if (!s.ok()) return s;
  s = ReadTable(stream, stream_bytes, h, view);
  if (!s.ok()) return s;
  view->stream = stream;
  view->payload_words = (stream_bytes - view->sections.payload) / 4;
  view->quantizer = plane::QuantizerOfStep(
      static_cast<DType>(h.dtype), plane::CodingOf(h), h.step);
  return {};
}

}  // namespace rans
}  // namespace comptrain
