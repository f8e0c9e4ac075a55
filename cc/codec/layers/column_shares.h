// How the threads of a GPU share the columns of a stream of a fixed rate, when
// they add up what belongs to a channel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/codec/common/bits.h"
#include "cc/codec/fixed_rate_gpu/tensor.h"

namespace comptrain {

// Neighbouring columns belong to neighbouring channels: a thread takes columns
// that are a multiple of the channels apart. Columns and channels count by
// those side by side that a thread works on together.
struct ColumnShares {
  static constexpr int64_t kThreads = 256, kMostBlocks = 396;

  int64_t columns, channels;
  // Of a block that work: as many as go into all channels, whose sums it adds
  // up. Where it has fewer than there are channels, the next ones go on.
  int64_t threads = kThreads;
  int64_t step, blocks;
  bool in_block;

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
        in_block(channels <= kThreads) {
    if (in_block) {
      threads = kThreads / channels * channels;
      blocks = std::min(kMostBlocks, CeilDiv(columns, threads));
      step = blocks * threads;
    } else {
      const int64_t most =
          std::max<int64_t>(1, kMostBlocks * kThreads / channels);
      step = std::min(most, CeilDiv(columns, channels)) * channels;
      blocks = CeilDiv(step, threads);
    }
  }
  // Of sums, of all channels each.
  int64_t rows() const { return in_block ? blocks : step / channels; }
};

}  // namespace comptrain
