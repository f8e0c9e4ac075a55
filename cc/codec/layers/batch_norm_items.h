// The gradient of batch normalization as functions of an item's number, an item
// a GPU thread. T: float, BF16 or F16, of dy. X: a function that gives the
// decoded input at a place.
#pragma once

#include <cstdint>

#include "cc/codec/common/divisor.h"
#include "cc/codec/common/half.h"
#include "cc/codec/common/host_device.h"

namespace comptrain {

struct BatchNormSum {
  double dy = 0, x = 0, dyx = 0;  // of dy, x - mean, dy * (x - mean)

  COMPTRAIN_HD void Add(const BatchNormSum& s) {
    dy += s.dy;
    x += s.x;
    dyx += s.dyx;
  }
};

// An X of a tensor.
template <class T>
struct ItemOf {
  const T* items;

  COMPTRAIN_HD float operator()(int64_t i) const { return ToFloat(items[i]); }
};

// Item: a channel in kBatchNormRows rows.
constexpr int64_t kBatchNormRows = 128;
template <class T, class X>
struct SumBatchNorm {
  X x;
  const T* dy;
  int64_t rows, channels;
  const float* mean;
  BatchNormSum* to;

  COMPTRAIN_HD void operator()(int64_t item) const {
    const int64_t c = item % channels;
    const int64_t begin = item / channels * kBatchNormRows;
    const int64_t end =
        begin + kBatchNormRows < rows ? begin + kBatchNormRows : rows;
    float sum = 0, off = 0, sum_x = 0;
    for (int64_t row = begin; row < end; ++row) {
      const float g = ToFloat(dy[row * channels + c]);
      const float d = x(row * channels + c) - mean[c];
      sum += g;
      off += d;
      sum_x += g * d;
    }
    to[item] = {sum, off, sum_x};
  }
};

// Item: a channel. dx = scale (dy - shift - (x - mean) slope) follows. What
// errors of x add to its mean is taken off: see batch_norm.h.
struct FinishBatchNorm {
  const BatchNormSum* total;
  const float* gamma;
  const float* inv_std;
  int64_t rows, channels;
  float* dgamma;
  float* dbeta;
  float* coefficients;  // [3][channels]: scale, shift, slope

  COMPTRAIN_HD void operator()(int64_t c) const {
    const double count = static_cast<double>(rows), inv = inv_std[c];
    const double off = total[c].x / count;
    const double dyx = total[c].dyx - off * total[c].dy;
    const double slope = dyx * inv * inv / count;
    dbeta[c] = static_cast<float>(total[c].dy);
    dgamma[c] = static_cast<float>(dyx * inv);
    coefficients[c] = gamma[c] * inv_std[c];
    coefficients[channels + c] =
        static_cast<float>(total[c].dy / count - off * slope);
    coefficients[2 * channels + c] = static_cast<float>(slope);
  }
};

// Item: an element. dx may be dy.
template <class T, class X>
struct BatchNormDx {
  X x;
  const T* dy;
  int64_t channels;
  const float* mean;
  const float* coefficients;
  T* dx;
  Divisor by_channels{channels};

  COMPTRAIN_HD void operator()(int64_t i) const {
    int64_t c;
    by_channels.Split(i, &c);
    const float v =
        coefficients[c] * (ToFloat(dy[i]) - coefficients[channels + c] -
                           (x(i) - mean[c]) * coefficients[2 * channels + c]);
    FromFloat(v, &dx[i]);
  }
};

}  // namespace comptrain
