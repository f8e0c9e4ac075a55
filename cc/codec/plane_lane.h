// Codec A, one lane of a tile: its format, its codes, its bits. What the packing
// of a CPU and a GPU thread share; lanes meet only in sums over the tile.
//
// Everything is `static`: sources for wider instruction sets may include this.
#ifndef TF_COMPTRAIN_CC_CODEC_PLANE_LANE_H_
#define TF_COMPTRAIN_CC_CODEC_PLANE_LANE_H_

#include <cstdint>

#include "cc/codec/bits.h"
#include "cc/codec/host_device.h"
#include "cc/codec/plane_tile.h"

namespace comptrain {
namespace plane {

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

// The 32 pixels of one lane.
struct LaneCodes {
  uint16_t u[kPixels];

  COMPTRAIN_HD LaneFormat Format(int max_sparse) const {
    uint32_t largest = 0, map = 0;
    COMPTRAIN_UNROLL
    for (int t = 0; t < kPixels; ++t) {
      largest = u[t] > largest ? u[t] : largest;
      map |= static_cast<uint32_t>(u[t] != 0) << t;
    }
    return ChooseFormat(largest, map, max_sparse);
  }

  // width words of a dense lane.
  COMPTRAIN_HD void WriteDense(int width, uint32_t* out) const {
    uint64_t buffer = 0;
    int filled = 0;
    COMPTRAIN_UNROLL
    for (int t = 0; t < kPixels; ++t) {
      buffer |= static_cast<uint64_t>(u[t]) << filled;
      filled += width;
      if (filled >= 32) {
        *out++ = static_cast<uint32_t>(buffer);
        buffer >>= 32;
        filled -= 32;
      }
    }
  }
  COMPTRAIN_HD void ReadDense(int width, const uint32_t* in) {
    uint64_t buffer = 0;
    int filled = 0;
    COMPTRAIN_UNROLL
    for (int t = 0; t < kPixels; ++t) {
      if (filled < width) {
        buffer |= static_cast<uint64_t>(*in++) << filled;
        filled += 32;
      }
      u[t] = static_cast<uint16_t>(buffer & ((1u << width) - 1));
      buffer >>= width;
      filled -= width;
    }
  }

  // The values of a sparse lane from bit `at` on of zeroed words, which it
  // shares with its neighbours: or_word(i, bits) sets bits of word i.
  template <class OrWord>
  COMPTRAIN_HD void WriteSparse(const LaneFormat& f, int at,
                                const OrWord& or_word) const {
    uint64_t buffer = 0;
    int word = at >> 5, filled = at & 31;
    COMPTRAIN_UNROLL
    for (int t = 0; t < kPixels; ++t) {
      if ((f.map >> t & 1) == 0) continue;
      buffer |= static_cast<uint64_t>(u[t] - 1u) << filled;
      filled += f.width;
      if (filled >= 32) {
        or_word(word++, static_cast<uint32_t>(buffer));
        buffer >>= 32;
        filled -= 32;
      }
    }
    if (filled > 0) or_word(word, static_cast<uint32_t>(buffer));
  }
  COMPTRAIN_HD void ReadSparse(const LaneFormat& f, int at,
                               const uint32_t* words) {
    COMPTRAIN_UNROLL
    for (int t = 0; t < kPixels; ++t) {
      u[t] = 0;
      if ((f.map >> t & 1) == 0) continue;
      uint64_t two = words[at >> 5];
      if ((at & 31) + f.width > 32) {
        two |= static_cast<uint64_t>(words[(at >> 5) + 1]) << 32;
      }
      u[t] = static_cast<uint16_t>((two >> (at & 31) & ((1u << f.width) - 1)) + 1);
      at += f.width;
    }
  }
};

}  // namespace plane
}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_PLANE_LANE_H_
