// plane, one lane of a tile: its format. What the packing of a CPU and of a GPU
// thread share.
//
// Everything is `static`: sources for wider instruction sets may include this.
#pragma once

#include <cstdint>

#include "cc/codec/common/bits.h"
#include "cc/codec/common/host_device.h"
#include "cc/codec/plane/tile.h"

namespace comptrain::plane {

constexpr int kNarrowHeaderWords = 4;
constexpr int kWideHeaderWords = 8;
constexpr int kWideSparse = 32;
constexpr int kNarrowMaxSparse = 7, kWideMaxSparse = 16;

// How one lane is stored: `width` bits for every code, or (sparse) a bit map
// of the non-zero codes and `width` bits of code - 1 for each of those.
struct LaneFormat {
  int width = 0;
  bool sparse = false;
  uint32_t map = 0;

  COMPTRAIN_HD int value_bits() const {
    return width * (sparse ? PopCount(map) : kPixels);
  }
};

COMPTRAIN_HD static inline LaneFormat ChooseFormat(uint32_t largest,
                                                   uint32_t map,
                                                   int max_sparse) {
  LaneFormat f;
  f.map = map;
  f.width = BitLength(largest);
  if (largest == 0) return f;
  const int sparse_width = BitLength(largest - 1);
  const int sparse_bits = kPixels + sparse_width * PopCount(map);
  if (sparse_width <= max_sparse && sparse_bits < f.width * kPixels) {
    f.width = sparse_width;
    f.sparse = true;
  }
  return f;
}

// A lane's nibble (narrow) or byte (wide) of the formats. No format is 0 but
// that of zeros.
COMPTRAIN_HD static inline uint32_t FormatCode(const LaneFormat& f, bool wide) {
  return f.width + (f.sparse ? (wide ? kWideSparse : 8) : 0);
}
// False when it is no format; the map is not set.
COMPTRAIN_HD static inline bool FormatOfCode(uint32_t code, bool wide,
                                             LaneFormat* f) {
  if (!wide) {
    f->sparse = code > 8;
    f->width = f->sparse ? code - 8 : code;
    return true;
  }
  f->sparse = (code & kWideSparse) != 0;
  f->width = code & ~kWideSparse;
  return f->width <= 16 && !(f->sparse && f->width == 0);
}

COMPTRAIN_HD static inline uint16_t Zigzag(int16_t q) {
  return static_cast<uint16_t>(static_cast<uint16_t>(q) << 1 ^ (q >> 15));
}
COMPTRAIN_HD static inline int16_t Unzigzag(uint16_t u) {
  return static_cast<int16_t>(u >> 1 ^ -(u & 1));
}

}  // namespace comptrain::plane
