#include <cmath>

#include "cc/codec/half.h"
#include "cc/codec/plane.h"

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
      const int64_t line =
          i * stratum + static_cast<int64_t>(Mix(i) % stratum);
      m.Add(x, dtype, line * per_line, (line + 1) * per_line);
    }
  }
  if (m.count == 0) return 0;
  const double mean = m.sum / m.count;
  return std::sqrt(std::fmax(0.0, m.sum_sq / m.count - mean * mean));
}

}  // namespace comptrain
