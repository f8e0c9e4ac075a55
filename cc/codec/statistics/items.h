// The summary of a tensor as functions of an item's number, an item a GPU
// thread. T: float, BF16 or F16.
#pragma once

#include <cfloat>
#include <cstdint>

#include "cc/codec/common/half.h"
#include "cc/codec/common/host_device.h"

namespace comptrain {

// Of the finite values of a tensor, and how many others there are.
struct Summary {
  double finite = 0, nonfinite = 0, sum = 0, sum_abs = 0, sum_sq = 0;
  float low = FLT_MAX, high = -FLT_MAX;

  COMPTRAIN_HD void Add(const Summary& s) {
    finite += s.finite;
    nonfinite += s.nonfinite;
    sum += s.sum;
    sum_abs += s.sum_abs;
    sum_sq += s.sum_sq;
    low = s.low < low ? s.low : low;
    high = s.high > high ? s.high : high;
  }
};

// Item: every kSummaryItems-th element from its number on.
constexpr int64_t kSummaryItems = 1 << 16;
template <class T>
struct Summarize {
  const T* x;
  int64_t n;
  Summary* to;

  COMPTRAIN_HD void operator()(int64_t item) const {
    Summary s;
    for (int64_t i = item; i < n; i += kSummaryItems) {
      const float v = ToFloat(x[i]);
      if (!(v - v == 0)) {
        s.nonfinite += 1;
        continue;
      }
      s.finite += 1;
      s.sum += v;
      s.sum_abs += v < 0 ? -v : v;
      s.sum_sq += static_cast<double>(v) * v;
      s.low = v < s.low ? v : s.low;
      s.high = v > s.high ? v : s.high;
    }
    to[item] = s;
  }
};

// gradient_stats.h, from a gradient's summary to three floats. One item.
struct FinishGradientStats {
  const Summary* s;
  int64_t channels;
  float* stats;

  COMPTRAIN_HD void operator()(int64_t) const {
    stats[0] = static_cast<float>(s->sum_sq / static_cast<double>(channels));
    stats[1] = static_cast<float>(s->finite > 0 ? s->sum_abs / s->finite : 0);
    stats[2] = static_cast<float>(s->nonfinite);
  }
};

}  // namespace comptrain
