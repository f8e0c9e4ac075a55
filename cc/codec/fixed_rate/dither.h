// Internal: offsets of the values of a stream of a fixed rate, in steps. Those
// that share words are turns of an angle apart, from a start that is random:
// each is uniform, and all together are as even as they can be.
#pragma once

#include <cstdint>

#include "cc/codec/common/half.h"
#include "cc/codec/common/host_device.h"
#include "cc/codec/stream/quantizer.h"

namespace comptrain {

// Of the whole turn that 32 bits are: the golden ratio. Bits below the upper
// 15 stay as they are.
constexpr uint32_t kDitherTurn = 0x9e360000;

// Of a group's first member, from its number with the seed: member i has i
// turns more. The upper 16 bits are odd, so that the mean of all is 0.
COMPTRAIN_HD static inline uint32_t DitherStart(uint32_t number) {
  uint32_t h = number * kDitherMix1;
  h ^= h >> 15;
  h *= kDitherMix2;
  return (h & 0xfffe0000) | 0x10000;
}

// 128 and what part of the whole turn it is, by its bits: GPUs have few units
// that convert.
COMPTRAIN_HD static inline float TurnPlus128(uint32_t turned) {
#ifdef __CUDA_ARCH__
  return BitsFloat(__byte_perm(turned, 0x4300, 0x5432));
#else
  return BitsFloat(0x43000000 | turned >> 16);
#endif
}

// The offset, between -1/2 and 1/2, plus `of`, a multiple of 1/2 below 2^7:
// exact.
COMPTRAIN_HD static inline float DitherPlus(float of, uint32_t turned) {
  return TurnPlus128(turned) + (of - 128.5f);
}

}  // namespace comptrain
