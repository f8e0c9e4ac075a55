#include "cc/codec/statistics/tensor_stats.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <functional>

#include "cc/codec/common/half.h"

namespace comptrain {
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
