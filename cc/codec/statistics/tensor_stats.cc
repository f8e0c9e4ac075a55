#include "cc/codec/statistics/tensor_stats.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <functional>

#include "cc/codec/common/half.h"
#include "cc/codec/common/sigma.h"

namespace comptrain {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kSampleLines = 2048;

// A well-mixed number for each counter (the finaliser of splitmix64).
uint64_t Mix(uint64_t i) {
  i += 0x9e3779b97f4a7c15;
  i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9;
  i = (i ^ i >> 27) * 0x94d049bb133111eb;
  return i ^ i >> 31;
}

struct Moments {
  double count = 0, sum = 0, sum_sq = 0;

  void Add(const void* x, DType dtype, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float v = LoadFloat(x, dtype, i);
      if (!std::isfinite(v)) continue;
      count += 1;
      sum += v;
      sum_sq += static_cast<double>(v) * v;
    }
  }
};

}  // namespace

// One line from each of kSampleLines equal strata, at a random place inside
// it: a fixed stride would meet the same channels every time.
double SampleSigma(const void* x, DType dtype, int64_t n) {
  const int64_t per_line = kLineBytes / static_cast<int64_t>(ItemBytes(dtype));
  const int64_t lines = n / per_line;
  Moments m;
  if (lines < 2 * kSampleLines) {
    m.Add(x, dtype, 0, n);
  } else {
    const int64_t stratum = lines / kSampleLines;
    for (int64_t i = 0; i < kSampleLines; ++i) {
      const int64_t line = i * stratum + static_cast<int64_t>(Mix(i) % stratum);
      m.Add(x, dtype, line * per_line, (line + 1) * per_line);
    }
  }
  return SigmaOf(m.count, m.sum, m.sum_sq);
}

namespace {

// Finite floats in the order of their values.
int32_t Ordered(uint32_t bits) {
  const int32_t i = static_cast<int32_t>(bits);
  return i < 0 ? i ^ INT32_MAX : i;
}

float FromOrdered(int32_t i) {
  return BitsFloat(static_cast<uint32_t>(i < 0 ? i ^ INT32_MAX : i));
}

template <class F>
void Raise(std::atomic<int32_t>* to, int32_t value, const F& better) {
  int32_t seen = to->load();
  while (better(value, seen) && !to->compare_exchange_weak(seen, value)) {
  }
}

}  // namespace

double ValueRange(const void* x, DType dtype, int64_t n,
                  const ParallelFor& parallel) {
  constexpr int64_t kBlock = 1 << 14;
  std::atomic<int32_t> smallest{INT32_MAX}, largest{INT32_MIN};
  parallel((n + kBlock - 1) / kBlock, kBlock, [&](int64_t begin, int64_t end) {
    int32_t low = INT32_MAX, high = INT32_MIN;
    for (int64_t i = begin * kBlock; i < std::min(n, end * kBlock); ++i) {
      const uint32_t bits = FloatBits(LoadFloat(x, dtype, i));
      const bool finite = (bits & 0x7f800000) != 0x7f800000;
      const int32_t v = Ordered(bits);
      low = std::min(low, finite ? v : INT32_MAX);
      high = std::max(high, finite ? v : INT32_MIN);
    }
    Raise(&smallest, low, std::less<int32_t>());
    Raise(&largest, high, std::greater<int32_t>());
  });
  if (smallest > largest) return 0;
  return static_cast<double>(FromOrdered(largest)) - FromOrdered(smallest);
}

}  // namespace comptrain
