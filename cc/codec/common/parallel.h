// How a codec asks its caller for threads. TensorFlow kernels pass the
// device's worker pool, tests pass a serial loop or plain std::threads.
#pragma once

#include <cstdint>
#include <functional>

namespace comptrain {

// body(begin, end) handles items [begin, end).
using RangeBody = std::function<void(int64_t begin, int64_t end)>;

// Runs body over disjoint ranges that cover [0, n), on any number of threads,
// and returns when all are done. cost_per_item is in CPU cycles, a hint.
using ParallelFor =
    std::function<void(int64_t n, int64_t cost_per_item, const RangeBody&)>;

inline void SerialFor(int64_t n, int64_t /*cost_per_item*/,
                      const RangeBody& body) {
  if (n > 0) body(0, n);
}

}  // namespace comptrain
