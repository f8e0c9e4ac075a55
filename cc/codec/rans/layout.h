// Where everything lies in a rans stream: geometry of chunks, section
// offsets, the table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cc/codec/common/host_device.h"
#include "cc/codec/common/bits.h"
#include "cc/codec/rans/rans.h"
#include "cc/codec/rans/chunk.h"
#include "cc/codec/rans/model.h"
#include "cc/codec/common/status.h"
#include "cc/codec/stream/quantizer.h"
#include "cc/codec/stream/scales.h"
#include "cc/codec/stream/stream.h"

namespace comptrain::rans {

// At least this many chunks, where there are, give the frequencies, and at
// least one in kCountStride.
constexpr int64_t kSampleChunks = 8, kCountStride = 16;
// Of about kSampleChunks chunks, for the shift.
constexpr int kShiftRows = 32;

// One chunk's place in the tensor, in elements.
struct ChunkPlace {
  int64_t first;   // number of the first value, counted chunk by chunk
  int64_t offset;  // of its first value
  int rows;        // 1 .. 2^log2_pixels
  int valid;       // values inside the tensor, pixel by pixel

  bool whole() const { return valid == rows * kLanes; }
};

// What a lane of a chunk has inside the tensor: `rows` values from element
// `first` on, a pixel apart; in a raw chunk they are from element `raw` on,
// `unit` apart.
struct Column {
  int64_t first = 0;
  int raw = 0;
  int rows = 0;
};

// The tensor as pixels of `row` values. A chunk is `unit` neighbouring channels
// of a stretch of pixels; its 32 lanes are those of 32 / unit runs, equal parts
// of the stretch. Chunk index = (stretch) * groups + (group of unit channels).
struct Geometry {
  int64_t n = 0;
  int64_t row = kLanes;  // channels, or 32 for the flat view
  int unit = kLanes;     // 8, 16 or 32: the largest that divides row
  int runs = 1;
  int64_t groups = 1;
  int64_t pixels = 0;
  int log2_pixels = 7;  // of a run
  int64_t chunks = 0;
  bool flat = false;  // channels % 8 != 0: rows of 32 whatever they are

  Geometry() = default;
  Geometry(int64_t n_values, int64_t channels) : n(n_values) {
    flat = channels % 8 != 0;
    row = flat ? kLanes : channels;
    while (row % unit != 0) unit /= 2;
    runs = kLanes / unit;
    groups = row / unit;
    pixels = CeilDiv(n, row);
    log2_pixels = n >= 1 << 20 ? 9 : n >= 1 << 18 ? 8 : 7;
    chunks = CeilDiv(pixels, int64_t{runs} << log2_pixels) * groups;
  }

  COMPTRAIN_HD ChunkPlace Place(int64_t chunk) const {
    const int64_t stretch = int64_t{runs} << log2_pixels;
    const int64_t first_pixel = chunk / groups * stretch;
    const int64_t left = pixels - first_pixel;
    const int64_t count = left < stretch ? left : stretch;
    ChunkPlace p;
    p.first = chunk * kLanes << log2_pixels;
    p.offset = first_pixel * row + chunk % groups * unit;
    p.rows = static_cast<int>((count + runs - 1) / runs);
    p.valid = static_cast<int>(count * unit);
    if (flat && n - p.offset < p.valid)
      p.valid = static_cast<int>(n - p.offset);
    return p;
  }

  COMPTRAIN_HD Column ColumnOf(const ChunkPlace& p, int lane) const {
    const int channel = lane % unit, pixel = lane / unit * p.rows;
    const int left = (p.valid - channel + unit - 1) / unit - pixel;
    Column c;
    c.first = p.offset + pixel * row + channel;
    c.raw = pixel * unit + channel;
    c.rows = left < 0 ? 0 : left < p.rows ? left : p.rows;
    return c;
  }

  // Chunks from one to the next that the shift, and the frequencies, are taken
  // from; the first of them is ShiftStep() / 2, and 0.
  int64_t ShiftStep() const {
    return std::max<int64_t>(1, chunks / kSampleChunks);
  }
  int64_t CountStep() const { return std::min(kCountStride, ShiftStep()); }

  // Of a chunk of `rows` rows in memory where pixels are so far apart.
  Pitch PitchOf(int rows, int64_t pixel_bytes, int64_t item) const {
    Pitch p;
    p.row = pixel_bytes;
    for (int i = 0; i < kPieces; ++i) {
      p.piece[i] = 8 * i / unit * rows * pixel_bytes + 8 * i % unit * item;
    }
    return p;
  }

  // Rows up to the pixel above, 0 when it is never in the same run.
  int Stride(int64_t width, int64_t channels) const {
    const int64_t limit = int64_t{1} << log2_pixels;
    if (width <= 0 || width >= limit * kLanes) return 0;
    if (flat && width * channels % kLanes != 0) return 0;
    const int64_t stride = flat ? width * channels / kLanes : width;
    return stride < limit ? static_cast<int>(stride) : 0;
  }
};

inline LanePlaces LanesOf(const Geometry& g, const ChannelScales& scales,
                          int64_t channels) {
  return LanePlaces(g.flat, g.groups, scales, channels);
}
// Of each group of channels those of a chunk's 32 lanes.
inline ScaleTable ScalesOf(const Geometry& g, const LanePlaces& lanes,
                           const Quantizer& stream,
                           const ChannelScales& scales) {
  return ScaleTable(lanes, stream, scales, [&g](int64_t lane) {
    return lane / kLanes * g.unit + lane % kLanes % g.unit;
  });
}

// The table section: this, then the frequencies where they were counted.
struct TableHead {
  uint32_t stride;
  uint8_t shift;
  uint8_t table;  // a Prior, or kCountedTable: kContexts * kTokens u16 follow
  uint8_t padding[10];  // zero
};
static_assert(sizeof(TableHead) == 16, "packed layout");
constexpr uint8_t kCountedTable = 2;
constexpr size_t kFrequencyBytes = 2 * kContexts * kTokens;

// Byte offsets of the sections, each a multiple of 16.
struct Sections {
  uint64_t directory, table, payload;

  Sections(const Geometry& g, bool counted) {
    directory = sizeof(StreamHeader);
    table = directory + AlignSection(4 * static_cast<uint64_t>(g.chunks));
    payload = table + sizeof(TableHead) + (counted ? kFrequencyBytes : 0);
  }
};

// A checked stream.
struct StreamView {
  Geometry geometry;
  Quantizer quantizer;  // with the scales of all lanes
  ScaleTable scales;
  LanePlaces lanes;
  Model model;
  const uint8_t* stream = nullptr;
  Sections sections{Geometry(), false};
  uint64_t payload_words = 0;

  // The payload word where a chunk begins, or where the last one ends.
  uint64_t Start(int64_t chunk) const {
    if (chunk == geometry.chunks) return payload_words;
    return ElementOf<uint32_t>(stream + sections.directory, chunk);
  }
};

// Checks every header field, the table and the padding; directory and payload
// are left to the decoder.
Status OpenStream(const uint8_t* stream, size_t stream_bytes, int64_t n,
                  StreamView* view);

}  // namespace comptrain::rans
