// Internal: tiles of plane as a warp has them, a thread a lane. For CUDA
// sources.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cc/codec/common/bits.h"
#include "cc/codec/common/divisor.h"
#include "cc/codec/common/warp.h"
#include "cc/codec/plane/lane.h"
#include "cc/codec/plane/layout.h"
#include "cc/codec/stream/check_params.h"
#include "cc/codec/stream/gpu_kernels.h"

namespace comptrain::plane {

constexpr char kOnGpu[] = "plane on a GPU";

// Geometry::Place of a tile, by a GPU thread.
struct TilePosition {
  int64_t offset;  // of the tile's first value
  int valid;
};

// A tensor as tiles; there are fewer than 2^31, since a directory entry is two
// bytes and a payload begins below 2^32.
struct TensorView {
  int64_t n, row, rows, tiles;
  uint32_t n_groups;
  Divisor groups;
  bool flat;
  int64_t channels;

  __device__ TilePosition Place(int64_t tile) const {
    const auto number = static_cast<uint32_t>(tile);
    const uint32_t block = groups.Small(number);
    const int64_t first_row = int64_t{block} * kPixels;
    TilePosition p;
    p.offset = first_row * row + (number - block * n_groups) * kLanes;
    const int64_t left = flat ? n - p.offset : (rows - first_row) * kLanes;
    p.valid = left < kTileValues ? static_cast<int>(left) : kTileValues;
    return p;
  }
};

// The 32 pixels of one lane, as they are packed.
struct LaneCodes {
  uint32_t u[kPixels];

  // What Read reads, to zeroed words that lanes share where kSparse.
  template <int kEach, bool kSparse>
  __device__ void Write(const LaneFormat& f, int at, uint32_t* words) const {
    const uint32_t map = kSparse && f.sparse ? f.map : ~0u;
    const uint32_t least = kSparse && f.sparse ? 1 : 0;
    const auto put = [&](uint32_t word) {
      if (kSparse) {
        atomicOr(words++, word);
      } else {
        *words++ = word;
      }
    };
    words += at >> 5;
    uint64_t bits = 0;
    int filled = at & 31;
#pragma unroll
    for (int begin = 0; begin < kPixels; begin += kEach) {
      uint32_t some = 0;
      int width = 0;
#pragma unroll
      for (int t = begin; t < begin + kEach; ++t) {
        const bool set = (map & 1u << t) != 0;
        if (set) some |= (u[t] - least) << width;
        if (set) width += f.width;
      }
      bits |= static_cast<uint64_t>(some) << filled;
      filled += width;
      if (filled >= 32) {
        put(static_cast<uint32_t>(bits));
        bits >>= 32;
        filled -= 32;
      }
    }
    if (kSparse && filled > 0) put(static_cast<uint32_t>(bits));
  }

  // A lane whose values begin at bit `at`, with no value wider than 32 / kEach
  // bits; kSparse: it may be sparse. Reads two words more.
  template <int kEach, bool kSparse>
  __device__ void Read(const LaneFormat& f, int at, const uint32_t* words) {
    const uint32_t mask = (1u << f.width) - 1;
    const uint32_t map = kSparse && f.sparse ? f.map : ~0u;
    const uint32_t least = kSparse && f.sparse ? 1 : 0;
#pragma unroll
    for (int begin = 0; begin < kPixels; begin += kEach) {
      const uint32_t* two = words + (at >> 5);
      uint32_t bits = __funnelshift_r(two[0], two[1], at);
#pragma unroll
      for (int t = begin; t < begin + kEach; ++t) {
        const bool set = (map & 1u << t) != 0;
        u[t] = set ? (bits & mask) + least : 0;
        if (set) bits >>= f.width;
      }
      at += f.width * __popc(map & BitsBelow(kEach) << begin);
    }
  }
};

// Where the parts of a tile's words lie; alike in all lanes but `dense`,
// `sparse` and `map`, which are this lane's: first word, first bit, word.
struct TileLayout {
  int words = 0, map = 0, dense = 0, sparse = 0, sparse_words = 0,
      first_sparse = 0;
};

static __device__ inline TileLayout LayOut(const LaneFormat& f, bool wide,
                                           int lane) {
  TileLayout at;
  const int header = wide ? kWideHeaderWords : kNarrowHeaderWords;
  const unsigned sparse = __ballot_sync(kAllLanes, f.sparse);
  const int maps = __popc(sparse);
  // Sums over the lanes before, of two at once: words of dense lanes, at most
  // 512, and bits of sparse ones, at most 2^14.
  const uint32_t mine = f.sparse ? f.value_bits() : f.width << 16;
  uint32_t sums = mine;
  for (int d = 1; d < kLanes; d *= 2) {
    const uint32_t below = __shfl_up_sync(kAllLanes, sums, d);
    if (lane >= d) sums += below;
  }
  const uint32_t totals = __shfl_sync(kAllLanes, sums, kLanes - 1);
  sums -= mine;
  const int dense_words = totals >> 16;
  at.sparse_words = ((totals & 0xffff) + 31) / 32;
  at.map = header + __popc(sparse & BitsBelow(lane));
  at.dense = header + maps + (sums >> 16);
  at.first_sparse = header + maps + dense_words;
  at.sparse = 32 * at.first_sparse + (sums & 0xffff);
  at.words = dense_words + maps == 0 ? 0 : at.first_sparse + at.sparse_words;
  return at;
}

// By a warp, with several reads under way at once.
static __device__ inline void CopyWords(const uint32_t* from, int count,
                                        int lane, uint32_t* to) {
  constexpr int kBatch = 4;
  from += lane;
#pragma unroll 1
  for (int i = lane; i - lane < count; i += kBatch * kLanes) {
    uint32_t word[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      word[j] = i + j * kLanes < count ? from[j * kLanes] : 0;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (i + j * kLanes < count) to[i + j * kLanes] = word[j];
    }
    from += kBatch * kLanes;
  }
}

// Words of the range's tiles before this one.
static __device__ inline int WordsBefore(const uint16_t* entries, int64_t tile,
                                         int lane) {
  return gpu::WordsBefore<kRangeTiles>(entries, tile, kWordsMask, lane);
}

static inline int64_t Blocks(const Geometry& g) {
  return static_cast<int64_t>(gpu::Scratch::Blocks(g.tiles));
}

static inline Status CheckGeometry(int64_t n, const Geometry& g) {
  return CheckSize(CodecId::kPlane, n, g.tiles, Sections(g).payload);
}

static inline TensorView TensorOf(const Geometry& g, int64_t channels) {
  return {g.n,
          g.row,
          g.n / g.row,
          g.tiles,
          static_cast<uint32_t>(g.groups),
          Divisor(g.groups),
          g.flat,
          channels};
}

static inline StreamHeader HeaderOf(DType dtype, const Geometry& g,
                                    int64_t channels, uint64_t total_bytes) {
  StreamHeader h = MakeHeader({CodecId::kPlane, dtype, g.n, channels},
                              kLog2Pixels, g.tiles, Sections(g), total_bytes);
  h.flags = static_cast<uint8_t>(g.flat ? kFlat : 0);
  return h;
}

}  // namespace comptrain::plane
