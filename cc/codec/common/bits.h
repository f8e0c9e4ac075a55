// Integer arithmetic, on a CPU and on a GPU.
//
// Everything is `static`: sources for wider instruction sets may include this.
#pragma once

#include <cstdint>

#include "cc/codec/common/host_device.h"

namespace comptrain {

COMPTRAIN_HD static inline int PopCount(uint32_t v) {
#ifdef __CUDA_ARCH__
  return __popc(v);
#else
  return __builtin_popcount(v);
#endif
}
// The bits before bit i, which is below 32.
COMPTRAIN_HD static inline uint32_t BitsBelow(int i) { return (1u << i) - 1; }
// v is not 0.
COMPTRAIN_HD static inline int TrailingZeros(uint32_t v) {
#ifdef __CUDA_ARCH__
  return __ffs(v) - 1;
#else
  return __builtin_ctz(v);
#endif
}
COMPTRAIN_HD static inline int BitLength(uint32_t v) {
#ifdef __CUDA_ARCH__
  return 32 - __clz(v);
#else
  return v == 0 ? 0 : 32 - __builtin_clz(v);
#endif
}

// Rows of sums that are added up at a time.
constexpr int64_t kAddedRows = 32;

COMPTRAIN_HD static inline int64_t CeilDiv(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

}  // namespace comptrain
