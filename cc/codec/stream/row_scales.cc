#include "cc/codec/stream/row_scales.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cc/codec/common/half.h"
#include "cc/codec/stream/scale_items.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {
namespace {

// Of a row whose length is no finite number.
constexpr int8_t kUnknown = INT8_MAX;

// Of its scale: what values are multiplied by in a direction.
float FactorOf(int8_t scale, int sign) {
  if (scale == kZeroRow) return sign > 0 ? 0.0f : 1.0f;
  return std::ldexp(1.0f, sign * scale);
}

// A float16 that would become zero is the number next to that: the mask of a
// ReLU's output is which values are zero.
template <class T>
void MultiplyBy(float factor, T x, T* out) {
  FromFloat(ToFloat(x) * factor, out);
  if constexpr (std::is_same_v<T, F16>) {
    if ((out->bits & 0x7fff) == 0 && (x.bits & 0x7fff) != 0 && factor != 0) {
      out->bits |= 1;
    }
  }
}

// What values of each channel are multiplied by before a row is measured, or a
// channel that is larger than all others would be the row. A mean of fourth
// roots is hardly moved by the few rows that this is to find.
template <class T>
std::vector<float> Weights(const T* x, int64_t rows, int64_t channels) {
  const SampledRows sample(rows, channels);
  std::vector<float> weights(channels), nonzero(channels);
  for (int64_t i = 0; i < sample.count; ++i) {
    const T* const row = x + sample.Row(i) * channels;
    for (int64_t c = 0; c < channels; ++c) {
      const float v = std::fabs(FiniteOrZero(ToFloat(row[c])));
      weights[c] += std::sqrt(std::sqrt(v));
      nonzero[c] += v > 0 ? 1.0f : 0.0f;
    }
  }
  double sum = 0;
  for (int64_t c = 0; c < channels; ++c) {
    const float root = weights[c] / std::max(nonzero[c], 1.0f);
    weights[c] = root * root * (root * root);
    sum += weights[c];
  }
  const auto least = static_cast<float>(kLeastOfChannels * sum /
                                        static_cast<double>(channels));
  for (float& weight : weights) weight = 1 / std::max(weight, least);
  return weights;
}

// In as many sums as make vectors, in one order everywhere.
template <class T>
float SumOfSquares(const T* x, const std::vector<float>& weights) {
  constexpr int kSums = 16;
  const auto n = static_cast<int64_t>(weights.size());
  const float* const of = weights.data();
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int k = 0; k < kSums; ++k) {
      const float v = ToFloat(x[i + k]) * of[i + k];
      sums[k] += v * v;
    }
  }
  for (int k = 0; i < n; ++i, ++k) {
    const float v = ToFloat(x[i]) * of[i];
    sums[k] += v * v;
  }
  float sum = 0;
  for (float each : sums) sum += each;
  return sum;
}

// The power of two just above a row's root mean square.
int8_t LengthOf(double mean_square) {
  if (mean_square == 0) return kZeroRow;
  if (!(mean_square < HUGE_VAL)) return kUnknown;
  int exponent;
  std::frexp(mean_square, &exponent);
  return static_cast<int8_t>((exponent + 256) / 2 - 128);
}

}  // namespace

bool FindRowScales(const RowsOfTensor& of, const ParallelFor& parallel,
                   int8_t* scales) {
  WithStorageType(of.dtype, [&](auto type) {
    const auto* const x = static_cast<const decltype(type)*>(of.x);
    const std::vector<float> weights = Weights(x, of.rows, of.channels);
    parallel(of.rows, of.channels, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        scales[row] =
            LengthOf(double{SumOfSquares(x + row * of.channels, weights)} /
                     static_cast<double>(of.channels));
      }
    });
  });
  int64_t sum = 0, count = 0;
  const auto has_length = [&](int64_t row) {
    return scales[row] != kUnknown && scales[row] != kZeroRow;
  };
  for (int64_t row = 0; row < of.rows; ++row) {
    if (!has_length(row)) continue;
    sum += scales[row];
    ++count;
  }
  if (count == 0) count = 1;
  const int usual = static_cast<int>(
      std::floor(static_cast<double>(sum) / static_cast<double>(count) + 0.5));
  bool any = false;
  for (int64_t row = 0; row < of.rows; ++row) {
    if (scales[row] == kZeroRow) continue;
    const int apart = has_length(row) ? scales[row] - usual : 0;
    const bool differs = std::abs(apart) >= kLeastRowScale;
    scales[row] = static_cast<int8_t>(
        differs ? std::clamp(apart, -kMostRowScale, kMostRowScale) : 0);
    any = any || differs;
  }
  return any;
}

bool RowScales::Any(int64_t first, int64_t n) const {
  if (scales_ == nullptr) return false;
  const int64_t last = (first + n - 1) / channels_;
  for (int64_t row = first / channels_; row <= last; ++row) {
    if (scales_[row] != 0) return true;
  }
  return false;
}

void RowScales::Multiply(int64_t first, int64_t n, int sign, float* x) const {
  for (int64_t done = 0; done < n;) {
    const int64_t row = (first + done) / channels_;
    const int64_t count =
        std::min(n - done, (row + 1) * channels_ - first - done);
    const float factor = FactorOf(scales_[row], sign);
    for (int64_t i = done; i < done + count; ++i) x[i] *= factor;
    done += count;
  }
}

void RowScales::MultiplyAll(const RowsOfTensor& of, int sign,
                            const ParallelFor& parallel, void* out) const {
  WithStorageType(of.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* const from = static_cast<const T*>(of.x);
    auto* const to = static_cast<T*>(out);
    parallel(of.rows, of.channels, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t first = row * of.channels;
        if (scales_[row] == 0) {
          if (to != from) {
            std::copy_n(from + first, of.channels, to + first);
          }
          continue;
        }
        const float factor = FactorOf(scales_[row], sign);
        for (int64_t i = first; i < first + of.channels; ++i) {
          MultiplyBy(factor, from[i], &to[i]);
        }
      }
    });
  });
}

double RmsOfRowScales(const int8_t* scales, int64_t rows) {
  if (rows == 0) return 1;
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const double factor = FactorOf(scales[row], 1);
    sum += factor * factor;
  }
  return std::sqrt(sum / static_cast<double>(rows));
}

const int8_t* TakeRowScales(int64_t rows, StreamIn* stream) {
  StreamHeader header;
  if (stream->bytes < sizeof header) return nullptr;
  std::memcpy(&header, stream->data, sizeof header);
  const auto bytes = static_cast<uint64_t>(rows);
  if (stream->bytes < bytes || header.total_bytes != stream->bytes - bytes) {
    return nullptr;
  }
  stream->bytes -= bytes;
  return reinterpret_cast<const int8_t*>(stream->data + stream->bytes);
}

}  // namespace comptrain
