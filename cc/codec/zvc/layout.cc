#include "cc/codec/zvc/layout.h"

#include <string>

#include "cc/codec/stream/check_stream.h"

namespace comptrain::zvc {

Status OpenStream(const uint8_t* stream, size_t stream_bytes, int64_t n,
                  StreamView* view) {
  constexpr CodecId kId = CodecId::kZvc;
  StreamHeader h;
  Status s = ReadHeader(kId, stream, stream_bytes, n, &h);
  if (!s.ok()) return s;
  const DType dtype = static_cast<DType>(h.dtype);
  const Layout layout(n, dtype);
  uint32_t step, inv;
  std::memcpy(&step, &h.step, sizeof step);
  std::memcpy(&inv, &h.inv, sizeof inv);
  const struct {
    const char* name;
    uint64_t wanted, got;
  } fields[] = {
      {"flags", 0, h.flags},
      {"log2_pixels", kLog2ChunkValues, h.log2_pixels},
      {"step", 0, step},
      {"inv", 0, inv},
      {"seed", 0, h.seed},
      {"n_chunks", static_cast<uint64_t>(layout.chunks), h.n_chunks},
  };
  for (const auto& f : fields) {
    if (f.got != f.wanted) {
      return BadHeader(kId, f.name, std::to_string(f.wanted), f.got);
    }
  }
  s = CheckSections(kId, h, layout.directory, layout.table, layout.payload);
  if (!s.ok()) return s;
  if (!AllZero(stream + layout.directory + 2 * layout.chunks,
               stream + layout.table) ||
      !AllZero(stream + layout.table + 4 * layout.ranges,
               stream + layout.payload)) {
    return BadField(kId, "padding between sections", "zero", "other bytes");
  }
  view->layout = layout;
  view->dtype = dtype;
  view->stream = stream;
  view->payload_words = (stream_bytes - layout.payload) / 4;
  return {};
}

}  // namespace comptrain::zvc
