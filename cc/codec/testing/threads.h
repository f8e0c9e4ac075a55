// Ways to run a ParallelFor in tests: the result must not depend on them.
#pragma once

#include <algorithm>
#include <thread>
#include <vector>

#include "cc/codec/common/parallel.h"

namespace comptrain {

// n_threads threads, each with one range of about the same length.
inline ParallelFor Threads(int n_threads) {
  return [n_threads](int64_t n, int64_t, const RangeBody& body) {
    std::vector<std::thread> threads;
    for (int t = 0; t < n_threads; ++t) {
      const int64_t begin = n * t / n_threads, end = n * (t + 1) / n_threads;
      if (begin < end) threads.emplace_back(body, begin, end);
    }
    for (std::thread& thread : threads) thread.join();
  };
}

// Every item on its own, last first.
inline void BackwardsFor(int64_t n, int64_t, const RangeBody& body) {
  for (int64_t i = n; i-- > 0;) body(i, i + 1);
}

inline std::vector<ParallelFor> ParallelVariants() {
  return {SerialFor, BackwardsFor, Threads(2), Threads(7)};
}

}  // namespace comptrain
