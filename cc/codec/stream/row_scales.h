// Powers of two that rows of a tensor are divided by before it is encoded, 0
// for most. A row is all of the last dimension. The others would be encoded at
// the scale of one that is much longer.
#pragma once

#include <cstdint>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/tensor.h"

namespace comptrain {

// Rows that are less than 2^2 times longer or shorter than usual have none.
constexpr int kLeastRowScale = 2, kMostRowScale = 60;
// Of a row of zeros: it is decoded to zeros.
constexpr int8_t kZeroRow = INT8_MIN;
// A channel counts by its scale, no smaller than this of the mean of all.
constexpr float kLeastOfChannels = 1.0f / 16;

// Values in rows; memory of the host.
struct RowsOfTensor {
  const void* x;
  DType dtype;
  int64_t rows, channels;
};

// Writes one for each row. Returns whether any but rows of zeros have one.
bool FindRowScales(const RowsOfTensor& of, const ParallelFor& parallel,
                   int8_t* scales);

// The scales of a tensor's rows.
class RowScales {
 public:
  // scales: of each row, owned by the caller; null: all are 0.
  RowScales(int64_t channels, const int8_t* scales)
      : channels_(channels), scales_(scales) {}

  // Whether any of n values from place `first` on is in a row that has one.
  bool Any(int64_t first, int64_t n) const;
  // Those values.
  void Divide(int64_t first, int64_t n, float* x) const {
    Multiply(first, n, -1, x);
  }
  void Multiply(int64_t first, int64_t n, float* x) const {
    Multiply(first, n, 1, x);
  }
  // All values; out may be of.x.
  void DivideAll(const RowsOfTensor& of, const ParallelFor& parallel,
                 void* out) const {
    MultiplyAll(of, -1, parallel, out);
  }
  void MultiplyAll(const RowsOfTensor& of, const ParallelFor& parallel,
                   void* out) const {
    MultiplyAll(of, 1, parallel, out);
  }

 private:
  void Multiply(int64_t first, int64_t n, int sign, float* x) const;
  void MultiplyAll(const RowsOfTensor& of, int sign,
                   const ParallelFor& parallel, void* out) const;

  const int64_t channels_;
  const int8_t* const scales_;
};

// The root of the mean square of what errors are multiplied by in rows with
// such scales; 1 of none.
double RmsOfRowScales(const int8_t* scales, int64_t rows);

// What comes behind a stream of so many rows, which is left without it; null
// where nothing does.
const int8_t* TakeRowScales(int64_t rows, StreamIn* stream);

}  // namespace comptrain
