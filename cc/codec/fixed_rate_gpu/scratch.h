// Internal, for CUDA sources: what an encoder works in.
#pragma once

#include <cstdint>

#include "cc/codec/common/bits.h"
#include "cc/codec/common/gpu.h"
#include "cc/codec/common/half.h"
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

// A number that is larger where the float is; never 0.
COMPTRAIN_HD inline uint32_t Ordered(float v) {
  const uint32_t bits = FloatBits(v);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000;
}
COMPTRAIN_HD inline float OfOrdered(uint32_t ordered) {
  return BitsFloat(ordered >> 31 != 0 ? ordered & 0x7fffffff : ~ordered);
}

// What a state is made of, once there is a sample.
struct StateJob {
  StateRule rule;
  const float* before;
  Scratch* scratch;
  float* after;

  // write: WriteBound or WriteState.
  template <class F>
  __device__ void Write(const F& write, float* next) const {
    SampleSums sample = scratch->sample[0];
    for (int i = 1; i < kSampleBlocks; ++i) sample.Add(scratch->sample[i]);
    double range = 0;
    if (rule.bound.of_range && scratch->largest != 0) {
      range = static_cast<double>(OfOrdered(scratch->largest)) -
              OfOrdered(~scratch->smallest);
    }
    write(rule, before, sample, range, next);
  }
};

// Adds up what the threads of a block have; the first one has the sum.
template <class Sum>
__device__ void AddUp(Sum* sums, int threads) {
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    const int i = static_cast<int>(threadIdx.x);
    if (i < half) sums[i].Add(sums[i + half]);
  }
}

// Writes the sums of a sample and the centres, and clears what is counted.
Status SampleTensor(const FixedRateTensor& of, const FixedRateInput& in,
                    Scratch* scratch, uint8_t* stream,
                    CUstream_st* cuda_stream);

}  // namespace comptrain::gpu
