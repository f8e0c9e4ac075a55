// Which values of a tensor stand for all of them, when its statistics are
// found.
#pragma once

#include <cstdint>
#include <vector>

namespace comptrain {

// For the standard deviation.
constexpr int64_t kSample = 1 << 14;
// Values of a channel that its centre is the mean of, at least, where it has so
// many.
constexpr int64_t kSampleOfChannel = 16;

// Least bound over the largest value of the sample: scales reach 2^38 times
// that of the bound. Of the sample no more counts than this times the running
// sigma: an outlier would widen the bounds of all groups.
constexpr float kLeastOverLargest = 0x1p-33f, kLargestOverSigma = 0x1p20f;

// A centre stands for values whose mean is so many times further from 0 than
// far: mean^2 * this > the mean square. So few far values, which would take the
// centre away from all others, have none.
constexpr float kFarMean = 5;

// Every stride-th element along the largest dimensions but the last: at most so
// many, or one of each channel.
inline std::vector<int64_t> SampleStrides(const std::vector<int64_t>& dims,
                                          int64_t most) {
  std::vector<int64_t> strides(dims.size(), 1), left = dims;
  int64_t n = 1;
  for (int64_t along : dims) n *= along;
  while (n > most) {
    int widest = -1;
    for (int d = 0; d + 1 < static_cast<int>(left.size()); ++d) {
      if (left[d] > 1 && (widest < 0 || left[d] > left[widest])) widest = d;
    }
    if (widest < 0) break;
    n /= left[widest];
    strides[widest] *= 2;
    left[widest] = (dims[widest] + strides[widest] - 1) / strides[widest];
    n *= left[widest];
  }
  return strides;
}

}  // namespace comptrain
