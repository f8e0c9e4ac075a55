// Internal: a sum over a row, for the loops that every instruction set has.
#pragma once

#include <cstdint>

namespace comptrain {

// The sum of term(0) to term(n - 1), in lanes that the compiler turns into a
// vector.
template <class Term>
static inline float SumOf(int64_t n, const Term& term) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += term(i + l);
  }
  for (int l = 0; i + l < n; ++l) lanes[l] += term(i + l);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

}  // namespace comptrain
