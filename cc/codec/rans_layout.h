// Where everything lies in a codec B stream: geometry of chunks, section
// offsets, the table.
#ifndef TF_COMPTRAIN_CC_CODEC_RANS_LAYOUT_H_
#define TF_COMPTRAIN_CC_CODEC_RANS_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cc/codec/plane_layout.h"
#include "cc/codec/rans.h"
#include "cc/codec/rans_chunk.h"
#include "cc/codec/rans_model.h"
#include "cc/codec/status.h"
#include "cc/codec/stream.h"

namespace comptrain {
namespace rans {

using plane::CeilDiv;

// One chunk's place in the tensor, in elements.
struct ChunkPlace {
  int64_t first;   // number of the first value, counted chunk by chunk
  int64_t offset;  // of its first value
  int rows;        // 1 .. pixels of a chunk
  int valid;       // values inside the tensor, row-major in the chunk
};

// The tensor as rows of `row` values cut into chunks of 2^log2_pixels rows x
// 32 values: chunk index = (row block) * groups + group.
struct Geometry {
  int64_t n = 0;
  int64_t row = kLanes;  // channels, or 32 for the flat view
  int64_t groups = 1;
  int64_t rows = 0;
  int log2_pixels = 7;
  int64_t chunks = 0;
  bool flat = false;

  Geometry() = default;
  Geometry(int64_t n_values, int64_t channels) : n(n_values) {
    flat = channels % kLanes != 0;
    row = flat ? kLanes : channels;
    groups = row / kLanes;
    rows = CeilDiv(n, row);
    log2_pixels = n >= 1 << 22 ? 9 : n >= 1 << 20 ? 8 : 7;
    chunks = CeilDiv(rows, int64_t{1} << log2_pixels) * groups;
  }

  ChunkPlace Place(int64_t chunk) const {
    const int64_t first_row = chunk / groups << log2_pixels;
    ChunkPlace p;
    p.first = chunk * kLanes << log2_pixels;
    p.offset = first_row * row + chunk % groups * kLanes;
    p.rows = static_cast<int>(
        std::min<int64_t>(int64_t{1} << log2_pixels, rows - first_row));
    p.valid = p.rows * kLanes;
    if (flat) {
      p.valid = static_cast<int>(std::min<int64_t>(p.valid, n - p.offset));
    }
    return p;
  }

  // Rows up to the pixel above, 0 when it is never in the same chunk.
  int Stride(int64_t width, int64_t channels) const {
    const int64_t limit = int64_t{1} << log2_pixels;
    if (width <= 0 || width >= limit * kLanes) return 0;
    if (flat && width * channels % kLanes != 0) return 0;
    const int64_t stride = flat ? width * channels / kLanes : width;
    return stride < limit ? static_cast<int>(stride) : 0;
  }
};

// The table section: this, then the frequencies where they were counted.
struct TableHead {
  uint32_t stride;
  uint8_t shift;
  uint8_t counted;  // 1: kContexts * kTokens u16 follow
  uint8_t padding[10];  // zero
};
static_assert(sizeof(TableHead) == 16, "packed layout");
constexpr size_t kFrequencyBytes = 2 * kContexts * kTokens;

// Byte offsets of the sections, each a multiple of 16.
struct Sections {
  uint64_t directory, table, payload;

  Sections(const Geometry& g, bool counted) {
    directory = sizeof(StreamHeader);
    table = directory + (4 * static_cast<uint64_t>(g.chunks) + 15) / 16 * 16;
    payload = table + sizeof(TableHead) + (counted ? kFrequencyBytes : 0);
  }
};

inline uint32_t RawWords(int valid, DType dtype) {
  return plane::RawWords(valid, dtype);
}

// Rows of a chunk between a tensor and a compact [rows][32] copy.
inline void CopyRows(const uint8_t* from, int64_t from_row, uint8_t* to,
                     int64_t to_row, int64_t valid_bytes, int64_t tile_row) {
  for (int64_t done = 0; done < valid_bytes; done += tile_row) {
    std::memcpy(to, from, std::min(tile_row, valid_bytes - done));
    from += from_row;
    to += to_row;
  }
}

// What an encoder can do on this machine.
Status CheckParams(const RansParams& params, Isa isa);

// A checked stream.
struct StreamView {
  Geometry geometry;
  Quantizer quantizer;
  Model model;
  const uint8_t* stream = nullptr;
  Sections sections{Geometry(), false};
  uint64_t payload_words = 0;

  // The payload word where a chunk begins, or where the last one ends.
  uint64_t Start(int64_t chunk) const {
    if (chunk == geometry.chunks) return payload_words;
    uint32_t w;
    std::memcpy(&w, stream + sections.directory + 4 * chunk, sizeof w);
    return w;
  }
};

// Checks every header field, the table and the padding; directory and payload
// are left to the decoder.
Status OpenStream(const uint8_t* stream, size_t stream_bytes, int64_t n,
                  StreamView* view);

}  // namespace rans
}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_RANS_LAYOUT_H_
