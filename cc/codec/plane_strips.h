// Internal: decodes a codec A stream into a small buffer, one tile or a few at
// a time, for callers that read x_hat beside another tensor.
#ifndef TF_COMPTRAIN_CC_CODEC_PLANE_STRIPS_H_
#define TF_COMPTRAIN_CC_CODEC_PLANE_STRIPS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cc/codec/plane_ranges.h"

namespace comptrain {
namespace plane {

// In the flat view tiles follow each other in memory: together they hold
// several rows of any width. 32 KB of f32, the L1 cache.
constexpr int64_t kFlatStripTiles = 8;

// Decoded values: those of one tile, [rows][32], or, in the flat view, of
// consecutive tiles.
struct Strip {
  int64_t offset;    // in the tensor, of the first value
  int64_t values;    // inside the tensor
  const uint8_t* x;  // of the stream's dtype, 64-byte aligned
  int64_t ahead;     // from this offset to that of the strip to come; 0: none
};

// Calls body(strip) over ranges [begin, end), in order. Damage is reported,
// and the strip it is in left out.
template <typename Body>
void ForDecodedStrips(const StreamView& v, DecodeTileFn decode, int64_t begin,
                      int64_t end, FirstFailure* failure, const Body& body) {
  const Geometry& g = v.geometry;
  const int64_t item = static_cast<int64_t>(ItemBytes(v.quantizer.dtype));
  const int64_t most = g.flat ? kFlatStripTiles : 1;
  alignas(64) uint8_t buffer[kFlatStripTiles * kTileValues * 4];
  for (int64_t range = begin; range < end; ++range) {
    int64_t tile = range * kRangeTiles, first = tile;
    const int64_t last = std::min(g.tiles, tile + kRangeTiles);
    const auto add = [&](const TilePlace& place, uint16_t entry,
                         const uint32_t* words) {
      uint8_t* to = buffer + (tile - first) * kTileValues * item;
      if (entry & kRaw) {
        std::memcpy(to, words, place.valid * item);
      } else if (!decode(v.quantizer, entry, words, to, kLanes * item)) {
        return false;
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

}  // namespace plane
}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_PLANE_STRIPS_H_
