// Internal, for CUDA sources: what an encoder works in.
#pragma once

#include <cstdint>

#include "cc/codec/common/gpu.h"
#include "cc/codec/common/status.h"
#include "cc/codec/fixed_rate/fixed_rate.h"
#include "cc/codec/fixed_rate/state.h"
#include "cc/codec/fixed_rate_gpu/gpu.h"

namespace comptrain::gpu {

constexpr int kScales = 256;
constexpr int kSampleBlocks = 8;

struct Scratch {
  uint32_t largest, smallest;  // ordered, smallest inverted; 0: none so far
  uint32_t blocks_done;
  uint32_t groups_with[kScales];  // of each scale
  SampleSums sample[kSampleBlocks];
};
static_assert(sizeof(Scratch) == kGpuFixedRateScratchBytes, "what gpu.h says");

// Adds up what the threads of a block have; the first one has the sum.
template <class Sum>
__device__ void AddUp(Sum* sums, int threads) {
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    const int i = static_cast<int>(threadIdx.x);
    if (i < half) sums[i].Add(sums[i + half]);
  }
}

// Writes the state and the centres, by a sample, and clears what is counted.
Status SampleTensor(const FixedRateTensor& of, const FixedRateInput& in,
                    Scratch* scratch, const FixedRateOutput& out,
                    CUstream_st* cuda_stream);

}  // namespace comptrain::gpu
