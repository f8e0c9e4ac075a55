// rans' integer arithmetic on single values and contexts: its definition, of
// which plain C++ and the GPU make their loops. docs/codec-format.md explains
// it.
//
// Everything is `static`: sources for wider instruction sets may include this.
#pragma once

#include <cstdint>

#include "cc/codec/common/host_device.h"
#include "cc/codec/rans/chunk.h"

namespace comptrain::rans {

template <class T>
COMPTRAIN_HD static inline T Smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
COMPTRAIN_HD static inline T Larger(T a, T b) {
  return a < b ? b : a;
}

COMPTRAIN_HD static inline uint16_t Zigzag(uint16_t d) {
  return static_cast<uint16_t>(d << 1 ^ -(d >> 15));
}
COMPTRAIN_HD static inline uint16_t Unzigzag(uint16_t u) {
  return static_cast<uint16_t>(u >> 1 ^ -(u & 1));
}

// All on biased codes, modulo 2^16.
COMPTRAIN_HD static inline uint16_t Average(uint16_t a, uint16_t b) {
  return static_cast<uint16_t>((a + b + 1) >> 1);
}
// Of left, above and the plane through all three.
COMPTRAIN_HD static inline uint16_t Median(uint16_t left, uint16_t above,
                                           uint16_t above_left) {
  const uint16_t plane = static_cast<uint16_t>(left + above - above_left);
  return Larger(Smaller(left, above), Smaller(Larger(left, above), plane));
}

// How a lane is coded.
struct Lane {
  bool negative = false, average = false, median = false;

  Lane() = default;
  COMPTRAIN_HD Lane(const ChunkHead& head, int lane)
      : negative(head.negative >> lane & 1),
        average(head.average >> lane & 1),
        median(head.median >> lane & 1) {}

  // median_of: Median(left, above, above-left).
  COMPTRAIN_HD uint16_t Predict(uint16_t left, uint16_t above,
                                uint16_t median_of) const {
    if (median) return median_of;
    return average ? Average(left, above) : kCodeBias;
  }
};

// What is coded for q, predicted as p: the zigzag of the difference. Without
// negative codes it is only p steps down to zero, and q itself beyond 2 p.
COMPTRAIN_HD static inline uint16_t Fold(uint16_t q, uint16_t p,
                                         bool negative) {
  const uint16_t z = Zigzag(static_cast<uint16_t>(q - p));
  const uint16_t twice = static_cast<uint16_t>(2 * p);  // the bias drops out
  return !negative && z > twice ? static_cast<uint16_t>(q - kCodeBias) : z;
}
COMPTRAIN_HD static inline uint16_t Unfold(uint16_t u, uint16_t p,
                                           bool negative) {
  const uint16_t twice = static_cast<uint16_t>(2 * p);
  if (!negative && u > twice) return static_cast<uint16_t>(u + kCodeBias);
  return static_cast<uint16_t>(p + Unzigzag(u));
}

COMPTRAIN_HD static inline uint16_t Neighbour(uint16_t u, int shift) {
  return static_cast<uint16_t>(Smaller<int>(u >> shift, kMaxNeighbour));
}

// How large the neighbours of a value are, for its context: below 128.
COMPTRAIN_HD static inline int NeighbourSum(int left, int left2, int above,
                                            int above2) {
  return Smaller(3 * (left + above) + left2 + above2, 127);
}
// For the context, of a lane without negative codes: below 16.
COMPTRAIN_HD static inline int MedianLevel(uint16_t median_of, int shift) {
  return Smaller<int>(static_cast<uint16_t>(median_of - kCodeBias) >> shift,
                      15);
}

// The smallest shift at which `count` codes of this sum have a mean below 16.
COMPTRAIN_HD static inline int ShiftFor(uint64_t sum, uint64_t count) {
  int shift = 0;
  while (shift < kMaxShift && count > 0 && sum >> shift >= 16 * count) ++shift;
  return shift;
}

// Frequencies of a context's tokens for its counts, in integers. A built-in
// table weighs as much as 64 counts.
COMPTRAIN_HD static inline void NormalizeContext(const uint64_t* counts,
                                                 const uint16_t* built_in,
                                                 uint16_t* f) {
  constexpr uint64_t kWeight = kProbOne / 64;
  uint64_t total = 0;
  for (int k = 0; k < kTokens; ++k) total += counts[k] * kWeight + built_in[k];
  int64_t left = kProbOne;
  int largest = 0;
  for (int k = 0; k < kTokens; ++k) {
    const uint64_t weight = counts[k] * kWeight + built_in[k];
    f[k] =
        static_cast<uint16_t>(Larger<uint64_t>(1, weight * kProbOne / total));
    left -= f[k];
    if (f[k] > f[largest]) largest = k;
  }
  // Rounding down leaves little, at most 15 tokens are raised to 1, and the
  // largest has at least 1 / 16 of it all.
  f[largest] = static_cast<uint16_t>(f[largest] + left);
}

}  // namespace comptrain::rans
