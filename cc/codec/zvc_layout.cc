#include "cc/codec/zvc_layout.h"

#include <string>

namespace comptrain {
namespace zvc {
namespace {

// "codec C stream: <field> <rule>, got <value>"
Status BadField(const char* field, const std::string& rule,
                const std::string& got) {
  return Status::Damaged(std::string("codec C stream: header field ") + field +
                         " must be " + rule + ", got " + got +
                         "; pass the bytes exactly as they were encoded");
}

struct Field {
  const char* name;
  uint64_t wanted, got;
};

bool AllZero(const uint8_t* begin, const uint8_t* end) {
  uint8_t any = 0;
  for (; begin != end; ++begin) any |= *begin;
  return any == 0;
}

uint32_t Bits(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  return bits;
}

}  // namespace

Status OpenStream(const uint8_t* stream, size_t stream_bytes, int64_t n,
                  StreamView* view) {
  StreamHeader h;
  if (stream == nullptr || stream_bytes < sizeof h) {
    return Status::Damaged(
        "codec C stream: it must hold a 64-byte header, got " +
        std::to_string(stream_bytes) + " bytes; pass the whole stream");
  }
  std::memcpy(&h, stream, sizeof h);
  if (h.dtype > static_cast<uint8_t>(DType::kF16)) {
    return BadField("dtype", "0 (float32), 1 (bfloat16) or 2 (float16)",
                    std::to_string(h.dtype));
  }
  if (n < 0 || h.n != static_cast<uint64_t>(n)) {
    return BadField("n", "the number of elements asked for, " +
                             std::to_string(n), std::to_string(h.n));
  }
  if (h.channels == 0 || h.n % h.channels != 0) {
    return BadField("channels",
                    "a positive divisor of n = " + std::to_string(h.n),
                    std::to_string(h.channels));
  }
  const DType dtype = static_cast<DType>(h.dtype);
  const Layout layout(n, dtype);
  const Field fields[] = {
      {"magic", kStreamMagic, h.magic},
      {"version", kStreamVersion, h.version},
      {"codec", static_cast<uint64_t>(CodecId::kZvc), h.codec},
      {"flags", 0, h.flags},
      {"log2_pixels", kLog2ChunkValues, h.log2_pixels},
      {"step", 0, Bits(h.step)},
      {"inv", 0, Bits(h.inv)},
      {"total_bytes", stream_bytes, h.total_bytes},
      {"n_chunks", static_cast<uint64_t>(layout.chunks), h.n_chunks},
      {"directory_offset", layout.directory, h.directory_offset},
      {"table_offset", layout.table, h.table_offset},
      {"payload_offset", layout.payload, h.payload_offset},
  };
  for (const Field& f : fields) {
    if (f.got != f.wanted) {
      return BadField(f.name, std::to_string(f.wanted), std::to_string(f.got));
    }
  }
  if (!AllZero(h.padding, h.padding + sizeof h.padding)) {
    return BadField("padding", "zero", "other bytes");
  }
  if (layout.payload > stream_bytes || (stream_bytes - layout.payload) % 4) {
    return BadField("total_bytes",
                    "that of all sections, with whole words from byte " +
                        std::to_string(layout.payload),
                    std::to_string(stream_bytes));
  }
  if (!AllZero(stream + layout.directory + 2 * layout.chunks,
               stream + layout.table) ||
      !AllZero(stream + layout.table + 4 * layout.ranges,
               stream + layout.payload)) {
    return Status::Damaged(
        "codec C stream: padding between sections must be zero, got other "
        "bytes; pass the bytes exactly as they were encoded");
  }
  view->layout = layout;
  view->dtype = dtype;
  view->stream = stream;
  view->payload_words = (stream_bytes - layout.payload) / 4;
  return {};
}

}  // namespace zvc
}  // namespace comptrain
