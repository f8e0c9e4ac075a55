// How the threads of a GPU share the columns of a stream of a fixed rate, when
// they add up what belongs to a channel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/codec/common/bits.h"
#include "cc/codec/fixed_rate_gpu/tensor.h"

namespace comptrain {

// Neighbouring columns belong to neighbouring channels. A block has a strip of
// channels side by side, and some threads for each of them, which take columns
// that are a multiple of the channels apart. Columns and channels count by
// those side by side that a thread works on together.
struct ColumnShares {
  static constexpr int kThreads = 256;
  // Of a GPU of 132 units, three each.
  static constexpr int64_t kMostBlocks = 396, kMostWidth = 64;

  int64_t columns, channels;
  int64_t strips;
  int width;       // channels of a strip; the last one may have fewer
  int lanes;       // threads of a block for one channel
  int64_t parts;   // blocks of a strip: rows of sums, of all channels each
  int64_t blocks;  // neighbouring ones have neighbouring strips

  static int Together(const gpu::TensorOnGpu& of) {
    return gpu::ColumnsTogether(ItemBytes(of.dtype));
  }
  // Whether there are such columns.
  static bool Fit(const gpu::TensorOnGpu& of) {
    return of.even() && of.one_channel && of.last % Together(of) == 0;
  }

  explicit ColumnShares(const gpu::TensorOnGpu& of)
      : columns(of.words.columns / Together(of)),
        channels(of.last / Together(of)),
        strips(CeilDiv(channels, kMostWidth)),
        width(static_cast<int>(CeilDiv(channels, strips))),
        lanes(kThreads / width),
        parts(std::clamp<int64_t>(CeilDiv(columns / channels, lanes), 1,
                                  std::max<int64_t>(1, kMostBlocks / strips))),
        blocks(strips * parts) {}
};

}  // namespace comptrain
