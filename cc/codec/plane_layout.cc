#include "cc/codec/plane_layout.h"

#include <cfloat>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <string>

namespace comptrain {
namespace plane {
namespace {

// "codec A stream: <field> <rule>, got <value>"
Status BadField(const char* field, const std::string& rule,
                const std::string& got) {
  return Status::Damaged(std::string("codec A stream: header field ") + field +
                         " must be " + rule + ", got " + got +
                         "; pass the bytes exactly as they were encoded");
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
    return BadField("magic", Text(kStreamMagic), Text(h.magic));
  }
  if (h.version != kStreamVersion) {
    return BadField("version", Text(kStreamVersion), Text(h.version));
  }
  if (h.codec != static_cast<uint8_t>(CodecId::kPlane)) {
    return BadField("codec", "1 (plane)", Text(h.codec));
  }
  if (h.dtype > static_cast<uint8_t>(DType::kF16)) {
    return BadField("dtype", "0 (float32), 1 (bfloat16) or 2 (float16)",
                    Text(h.dtype));
  }
  if (!FlagsAreKnown(h.flags)) {
    return BadField("flags", "1 (mid-rise), 2 (dither) or 0, plus 4 (flat)",
                    Text(h.flags));
  }
  if (h.log2_pixels != kLog2Pixels) {
    return BadField("log2_pixels", Text(kLog2Pixels), Text(h.log2_pixels));
  }
  if (!AllZero(h.padding, h.padding + sizeof h.padding)) {
    return BadField("padding", "zero", "other bytes");
  }
  return {};
}

Status CheckArithmetic(const StreamHeader& h) {
  if (!(std::isnormal(h.step) && h.step > 0 && 0.5f * h.step >= FLT_MIN)) {
    return BadField("step", "a positive number whose half is normal",
                    Number(h.step));
  }
  const float inv = 1.0f / h.step;
  if (h.inv != inv || inv < FLT_MIN) {
    return BadField("inv", "1 / step = " + Number(inv) + " and normal",
                    Number(h.inv));
  }
  return {};
}

}  // namespace

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
  }
  return "unknown";
}

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

bool FlagsAreKnown(uint8_t flags) {
  return (flags & ~(kMidRise | kDither | kFlat)) == 0 &&
         (flags & (kMidRise | kDither)) != (kMidRise | kDither);
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

bool BoundSupported(float eb) {
  if (!std::isnormal(eb) || eb < 0) return false;
  const Quantizer q = MakeQuantizer(DType::kF32, Coding::kPlain, eb);
  return std::isfinite(q.step) && 0.5f * q.step >= FLT_MIN && q.inv >= FLT_MIN;
}

Status OpenStream(const uint8_t* stream, size_t stream_bytes, int64_t n,
                  StreamView* view) {
  StreamHeader h;
  if (stream == nullptr || stream_bytes < sizeof h) {
    return Status::Damaged(
        "codec A stream: it must hold a 64-byte header, got " +
        Text(stream_bytes) +
        " bytes; pass the whole stream");
  }
  std::memcpy(&h, stream, sizeof h);
  Status s = CheckKind(h);
  if (!s.ok()) return s;
  s = CheckArithmetic(h);
  if (!s.ok()) return s;
  if (n < 0 || h.n != static_cast<uint64_t>(n)) {
    return BadField("n", "the number of elements asked for, " +
                             std::to_string(n), Text(h.n));
  }
  if (h.channels == 0 || h.n % h.channels != 0) {
    return BadField("channels", "a positive divisor of n = " + Text(h.n),
                    Text(h.channels));
  }
  if (h.total_bytes != stream_bytes) {
    return BadField("total_bytes",
                    "the size of the stream, " + Text(stream_bytes),
                    Text(h.total_bytes));
  }
  view->geometry = Geometry(n, h.channels);
  const Geometry& g = view->geometry;
  if (g.flat != ((h.flags & kFlat) != 0)) {
    return BadField("flags", "flat (4) exactly when channels % 32 != 0",
                    Text(h.flags));
  }
  if (static_cast<uint64_t>(g.tiles) != h.n_chunks) {
    return BadField("n_chunks",
                    "the number of tiles, " + std::to_string(g.tiles),
                    Text(h.n_chunks));
  }
  view->sections = Sections(g);
  const Sections& at = view->sections;
  if (h.directory_offset != at.directory) {
    return BadField("directory_offset", Text(at.directory),
                    Text(h.directory_offset));
  }
  if (h.table_offset != at.table) {
    return BadField("table_offset", Text(at.table), Text(h.table_offset));
  }
  if (h.payload_offset != at.payload || at.payload > stream_bytes ||
      (stream_bytes - at.payload) % 4 != 0) {
    return BadField("payload_offset",
                    Text(at.payload) + ", within the stream, whole words after",
                    Text(h.payload_offset));
  }
  if (!AllZero(stream + at.directory + 2 * g.tiles, stream + at.table) ||
      !AllZero(stream + at.table + 4 * g.ranges(), stream + at.payload)) {
    return Status::Damaged(
        "codec A stream: padding between sections must be zero, got other "
        "bytes; pass the bytes exactly as they were encoded");
  }
  view->stream = stream;
  view->payload_words = (stream_bytes - at.payload) / 4;
  view->quantizer = QuantizerOfStep(static_cast<DType>(h.dtype),
                                    CodingOf(h), h.step);
  return {};
}

}  // namespace plane
}  // namespace comptrain
