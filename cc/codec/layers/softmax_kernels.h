// Internal: the loops of softmax.h for a stretch of rows, one table for each
// instruction set. All tables give the same bytes.
#pragma once

#include <cstdint>

#include "cc/codec/common/half.h"
#include "cc/codec/common/isa.h"
#include "cc/codec/layers/row_sum.h"
#include "cc/codec/layers/softmax.h"

namespace comptrain {

// Indexed by DType.
struct SoftmaxKernels {
  void (*gradient[3])(const NormRows& y, const void* dy, void* dx);
};

COMPTRAIN_KERNEL_TABLES(SoftmaxKernels)

template <class T>
static inline void SoftmaxBackward(const NormRows& y, const void* dy,
                                   void* dx) {
  const int64_t channels = y.channels;
  const T* p = static_cast<const T*>(y.data);
  const T* gradient = static_cast<const T*>(dy);
  T* out = static_cast<T*>(dx);
  for (int64_t row = 0; row < y.rows;
       ++row, p += channels, gradient += channels, out += channels) {
    const float sum = SumOf(channels, [&](int64_t c) {
      return ToFloat(gradient[c]) * ToFloat(p[c]);
    });
    for (int64_t c = 0; c < channels; ++c) {
      FromFloat((ToFloat(gradient[c]) - sum) * ToFloat(p[c]), &out[c]);
    }
  }
}

static constexpr SoftmaxKernels SoftmaxTable() {
  return {
      {SoftmaxBackward<float>, SoftmaxBackward<BF16>, SoftmaxBackward<F16>}};
}

}  // namespace comptrain
