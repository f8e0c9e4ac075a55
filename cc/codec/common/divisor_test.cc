#include "cc/codec/common/divisor.h"

#include <random>

#include "cc/codec/testing/harness.h"

namespace comptrain {
namespace {

void TestOne(int64_t d, int64_t n) {
  const Divisor divisor(d);
  int64_t rest;
  CHECK(divisor.Split(n, &rest) == n / d);
  CHECK(rest == n % d);
}

// Around multiples of the divisor and the edges of 31 and 32 bits.
void TestAll() {
  constexpr int64_t kEdge = int64_t{1} << 31;
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    int64_t d = static_cast<int64_t>(random() >> (28 + random() % 35)) + 1;
    if (i % 8 == 0) d = int64_t{1} << (random() % 34);
    if (i < 100) d = i + 1;
    const int64_t multiple =
        static_cast<int64_t>(random() % (kEdge / d + 2)) * d;
    for (int64_t n :
         {int64_t{0}, d - 1, d, multiple - 1, multiple, multiple + 1, kEdge - 1,
          kEdge, 2 * kEdge + 1, static_cast<int64_t>(random() >> 33)}) {
      if (n >= 0) TestOne(d, n);
    }
  }
}

}  // namespace
}  // namespace comptrain

int main() {
  comptrain::TestAll();
  return comptrain::FinishTests();
}
