// Internal: what encoding and decoding chunks of rans on a GPU share. For CUDA
// sources.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "cc/codec/rans/lane.h"
#include "cc/codec/rans/layout.h"
#include "cc/codec/stream/check_params.h"
#include "cc/codec/stream/gpu_kernels.h"

namespace comptrain::rans {

constexpr char kOnGpu[] = "rans on a GPU";
constexpr int kHeadWords = sizeof(ChunkHead) / 4;

__constant__ const LaneTables kTables = kLaneTables;

// kBuiltInFrequencies, as an argument of kernels.
struct BuiltIn {
  uint16_t freq[2][kContexts * kTokens];

  BuiltIn() { std::memcpy(freq, kBuiltInFrequencies, sizeof freq); }
};

// By all threads of a block, which then synchronize.
static __device__ inline void LoadTables(int shift, LaneTables* tables) {
  auto* to = reinterpret_cast<uint32_t*>(tables);
  for (int i = threadIdx.x; i < kLaneTableWords; i += blockDim.x) {
    to[i] = ShiftedWord(kTables, i, shift);
  }
}

template <class T>
static __device__ inline uint32_t RawWords(const ChunkPlace& place) {
  return (place.valid * static_cast<uint32_t>(sizeof(T)) + 3) / 4;
}

static inline Status CheckGeometry(int64_t n, const Geometry& g) {
  return CheckSize(CodecId::kRans, n, g.chunks, Sections(g, true).payload);
}

static inline StreamHeader HeaderOf(DType dtype, const Geometry& g,
                                    int64_t channels, bool counted,
                                    uint64_t total_bytes) {
  StreamHeader h =
      MakeHeader({CodecId::kRans, dtype, g.n, channels}, g.log2_pixels,
                 g.chunks, Sections(g, counted), total_bytes);
  h.flags = static_cast<uint8_t>(g.flat ? kFlat : 0);
  return h;
}

}  // namespace comptrain::rans
