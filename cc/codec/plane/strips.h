// Internal: decodes a plane stream into a small buffer, one tile or a few at
// a time, for callers that read x_hat beside another tensor. Always as f32:
// rounding to the stream's dtype and back would take time and accuracy.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/codec/common/half.h"
#include "cc/codec/plane/ranges.h"

namespace comptrain::plane {

// In the flat view tiles follow each other in memory: together they hold
// several rows of most widths. 32 KB, the L1 cache.
constexpr int64_t kFlatStripTiles = 8;

// Decoded values: those of one tile, [rows][32], or, in the flat view, of
// consecutive tiles.
struct Strip {
  int64_t offset;  // in the tensor, of the first value
  int64_t values;  // inside the tensor
  const float* x;  // 64-byte aligned
  int64_t ahead;   // from this offset to that of the strip to come; 0: none
};

// Calls body(strip) over ranges [begin, end), in order. Damage is reported,
// and the strip it is in left out.
template <typename Body>
void ForDecodedStrips(const StreamView& v, Isa isa, int64_t begin, int64_t end,
                      FirstFailure* failure, const Body& body) {
  const Geometry& g = v.geometry;
  const DecodeTileFn decode =
      SelectKernels(isa, DType::kF32, v.quantizer.coding).decode;
  const int64_t most = g.flat ? kFlatStripTiles : 1;
  alignas(64) float buffer[kFlatStripTiles * kTileValues];
  for (int64_t range = begin; range < end; ++range) {
    int64_t tile = range * kRangeTiles, first = tile;
    const int64_t last = std::min(g.tiles, tile + kRangeTiles);
    const auto add = [&](const TilePlace& place, uint16_t entry,
                         const uint32_t* words) {
      float* to = buffer + (tile - first) * kTileValues;
      if (entry & kRaw) {
        for (int i = 0; i < place.valid; ++i) {
          to[i] = LoadFloat(words, v.quantizer.dtype, i);
        }
      } else {
        Quantizer quantizer = v.QuantizerAt(place);
        quantizer.dtype = DType::kF32;
        if (!decode(quantizer, entry, words, to, kLanes * sizeof *to)) {
          return false;
        }
      }
      ++tile;
      if (tile - first < most && tile < last) return true;
      Strip strip;
      strip.offset = g.Place(first).offset;
      strip.values = (tile - first - 1) * kTileValues + place.valid;
      strip.x = buffer;
      strip.ahead = tile < g.tiles ? g.Place(tile).offset - strip.offset : 0;
      body(strip);
      first = tile;
      return true;
    };
    ForTiles(v, range, range + 1, failure, add);
  }
}

}  // namespace comptrain::plane
