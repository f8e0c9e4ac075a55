// The standard deviation, from sums.
#pragma once

#include <cmath>

namespace comptrain {

// Of `count` values; 0 of none.
inline double SigmaOf(double count, double sum, double sum_sq) {
  if (!(count > 0)) return 0;
  const double mean = sum / count;
  return std::sqrt(std::fmax(0.0, sum_sq / count - mean * mean));
}

}  // namespace comptrain
