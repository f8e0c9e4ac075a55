// Where everything lies in a plane stream: geometry of tiles, directory
// entries, section offsets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cc/codec/common/bits.h"
#include "cc/codec/plane/plane.h"
#include "cc/codec/plane/tile.h"
#include "cc/codec/common/status.h"
#include "cc/codec/stream/scales.h"
#include "cc/codec/stream/stream.h"

namespace comptrain::plane {

constexpr int kRangeTiles = 64;  // tiles a table entry, and a unit of work

inline uint32_t EntryWords(uint16_t entry) { return entry & kWordsMask; }

// One tile's place in the tensor, in elements.
struct TilePlace {
  int64_t tile;    // number of the tile
  int64_t offset;  // of its first value
  int valid;       // values inside the tensor, row-major in the tile; 1..1024
};

// The tensor as rows of `row` values cut into tiles of 32 x 32: tile index =
// (row block) * groups + group.
struct Geometry {
  int64_t n = 0;
  int64_t row = kLanes;  // channels, or 32 for the flat view
  int64_t groups = 1;
  int64_t tiles = 0;
  bool flat = false;

  Geometry() = default;
  Geometry(int64_t n_values, int64_t channels) : n(n_values) {
    flat = channels % kLanes != 0;
    row = flat ? kLanes : channels;
    groups = row / kLanes;
    tiles = CeilDiv(CeilDiv(n, row), kPixels) * groups;
  }

  int64_t ranges() const { return CeilDiv(tiles, kRangeTiles); }

  TilePlace Place(int64_t tile) const {
    const int64_t first_row = tile / groups * kPixels;
    TilePlace p;
    p.tile = tile;
    p.offset = first_row * row + tile % groups * kLanes;
    if (flat) {
      p.valid = static_cast<int>(std::min<int64_t>(kTileValues, n - p.offset));
    } else {
      const int64_t rows = n / row - first_row;
      p.valid = static_cast<int>(std::min<int64_t>(kPixels, rows)) * kLanes;
    }
    return p;
  }
};

inline LanePlaces LanesOf(const Geometry& g, const ChannelScales& scales,
                          int64_t channels) {
  return LanePlaces(g.flat, g.groups, scales, channels);
}
inline ScaleTable ScalesOf(const LanePlaces& lanes, const Quantizer& stream,
                           const ChannelScales& scales) {
  return ScaleTable(lanes, stream, scales, [](int64_t lane) { return lane; });
}

// Byte offsets of the sections, each a multiple of 16.
struct Sections {
  uint64_t directory, table, payload;

  explicit Sections(const Geometry& g) {
    directory = sizeof(StreamHeader);
    table = directory + AlignSection(2 * static_cast<uint64_t>(g.tiles));
    payload = table + AlignSection(4 * static_cast<uint64_t>(g.ranges()));
  }
};

// A checked stream.
struct StreamView {
  Geometry geometry;
  Quantizer quantizer;  // with the scales of all lanes
  ScaleTable scales;
  LanePlaces lanes;
  const uint8_t* stream = nullptr;
  Sections sections{Geometry()};
  uint64_t payload_words = 0;

  uint16_t Entry(int64_t tile) const {
    return ElementOf<uint16_t>(stream + sections.directory, tile);
  }
  Quantizer QuantizerAt(const TilePlace& place) const {
    return CountedFrom(quantizer, place.tile * kTileValues,
                       lanes.First(place.tile, place.offset));
  }
  uint32_t RangeStart(int64_t range) const {
    return ElementOf<uint32_t>(stream + sections.table, range);
  }
};

// Checks every header field and the padding between sections; directory and
// payload are left to the decoder.
Status OpenStream(const uint8_t* stream, size_t stream_bytes, int64_t n,
                  StreamView* view);

}  // namespace comptrain::plane
