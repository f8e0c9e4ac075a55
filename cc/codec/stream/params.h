// What the encoders of all codecs are told of a tensor, and tell of it.
#pragma once

#include <cstdint>

#include "cc/codec/stream/stream.h"

namespace comptrain {

// A codec reads what concerns it: zvc, which is lossless, only the first three.
struct EncodeParams {
  DType dtype = DType::kF32;
  int64_t n = 0;          // elements
  int64_t channels = 1;   // size of the last dimension; divides n
  float eb = 0;           // absolute error bound, a positive normal number
  bool mid_rise = false;  // the stream carries the mask x != 0
  // Unbiased, the error independent of the data; carries the mask in any case.
  bool dither = false;
  // Pixels from one to the one above it: the size of the dimension before the
  // channels of an image. 0: no pixel is above another. Only a hint of rans: it
  // changes the ratio, never the promise.
  int64_t width = 0;
  // rans counts frequencies in tensors of so many values, where they take 1 KB;
  // the built-in ones serve smaller tensors.
  int64_t counted_from = 1 << 16;
};

// Sums over the finite elements, gathered while encoding: in double, range by
// range in order, so the same for any number of threads.
struct EncodeStats {
  int64_t nonzero = 0;
  double sum = 0;
  double sum_sq = 0;

  // of: what has these fields.
  template <class Sums>
  void Add(const Sums& of) {
    nonzero += of.nonzero;
    sum += of.sum;
    sum_sq += of.sum_sq;
  }
};

}  // namespace comptrain
