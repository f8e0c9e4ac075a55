// Internal: the loops of zvc over one whole chunk, one table for each
// instruction set. All tables give the same bytes.
#pragma once

#include <cstdint>

#include "cc/codec/common/isa.h"

namespace comptrain::zvc {

constexpr int kLog2ChunkValues = 11;
constexpr int kChunkValues = 1 << kLog2ChunkValues;
constexpr int kMaskWords = kChunkValues / 32;
// Kernels may write and read this much behind the packed values.
constexpr int kSlackBytes = 64;
// Bytes between the vector being packed and the one fetched: most of a chunk,
// so that reading goes on while the packed one is written.
constexpr int kAhead = 6144;

// Element i of a chunk is bit i % 32 of mask[i / 32]. Arrays of two functions:
// 16-bit and 32-bit elements.
struct ChunkKernels {
  // Elements of x with any bit set.
  int (*count[2])(const void* x);
  // values: room for all elements and kSlackBytes.
  void (*pack[2])(const void* x, uint32_t* mask, void* values);
  // values: as many as the mask has bits, and kSlackBytes readable behind.
  void (*unpack[2])(const uint32_t* mask, const void* values, void* out);
  int (*ones)(const uint32_t* mask);
};

COMPTRAIN_KERNEL_TABLES(ChunkKernels)

static inline int CountOnes(const uint32_t* mask) {
  int ones = 0;
  for (int w = 0; w < kMaskWords; ++w) ones += __builtin_popcount(mask[w]);
  return ones;
}

}  // namespace comptrain::zvc
