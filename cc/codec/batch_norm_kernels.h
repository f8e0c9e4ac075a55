// Internal: the loops of batch_norm.h over the rows of one decoded tile, one
// table for each instruction set. All give the same bits: an element is
// computed by the same operations, a lane adds its rows in order.
#ifndef TF_COMPTRAIN_CC_CODEC_BATCH_NORM_KERNELS_H_
#define TF_COMPTRAIN_CC_CODEC_BATCH_NORM_KERNELS_H_

#include <cstdint>

#include "cc/codec/half.h"
#include "cc/codec/plane_tile.h"

namespace comptrain {

// dx = scale * (dy - (shift + (x - mean) * slope)), by channel.
struct BatchNormLine {
  const float* mean;
  const float* slope;
  const float* shift;
  const float* scale;
};

// x: rows of 32 decoded values. dy, dx: rows of 32, row_bytes apart. rows: 1
// to 32. Indexed by DType.
struct BatchNormKernels {
  // sum_dy[l], sum_dyx[l]: sums over rows of dy and dy * (x - mean[l]), lanes
  // being channels.
  void (*lane_sums[3])(const void* x, const void* dy, int64_t row_bytes,
                       int rows, const float* mean, float* sum_dy,
                       float* sum_dyx);
  // Adds dy and dy * (x - mean) of value i to element i of the sums.
  void (*flat_sums[3])(const void* x, const void* dy, int rows,
                       const float* mean, float* sum_dy, float* sum_dyx);
  // The line of row t, lane l is element t * line_step + l.
  void (*gradient[3])(const void* x, const void* dy, int64_t row_bytes,
                      int rows, const BatchNormLine& line, int line_step,
                      void* dx);
};

const BatchNormKernels* BatchNormKernelsScalar();
// Null when not compiled for that set; says nothing about this machine.
const BatchNormKernels* BatchNormKernelsAvx2();
const BatchNormKernels* BatchNormKernelsAvx512();

// The loops for V: a vector type V::Floats of V::kWidth floats, with
// V::Load(const T*), V::Store(Floats, T*).

template <class V, class T>
static void BatchNormLaneSums(const void* x, const void* dy, int64_t row_bytes,
                              int rows, const float* mean, float* sum_dy,
                              float* sum_dyx) {
  constexpr int kVectors = plane::kLanes / V::kWidth;
  const T* in = static_cast<const T*>(x);
  const uint8_t* from = static_cast<const uint8_t*>(dy);
  typename V::Floats center[kVectors], sum[kVectors], product[kVectors];
  for (int k = 0; k < kVectors; ++k) {
    center[k] = V::Load(mean + k * V::kWidth);
    sum[k] = product[k] = typename V::Floats{};
  }
  for (int t = 0; t < rows; ++t) {
    const T* row = reinterpret_cast<const T*>(from);
    for (int k = 0; k < kVectors; ++k) {
      const auto g = V::Load(row + k * V::kWidth);
      sum[k] = sum[k] + g;
      product[k] =
          product[k] + g * (V::Load(in + k * V::kWidth) - center[k]);
    }
    in += plane::kLanes;
    from += row_bytes;
  }
  for (int k = 0; k < kVectors; ++k) {
    V::Store(sum[k], sum_dy + k * V::kWidth);
    V::Store(product[k], sum_dyx + k * V::kWidth);
  }
}

template <class V, class T>
static void BatchNormFlatSums(const void* x, const void* dy, int rows,
                              const float* mean, float* sum_dy,
                              float* sum_dyx) {
  const T* in = static_cast<const T*>(x);
  const T* from = static_cast<const T*>(dy);
  for (int i = 0; i < rows * plane::kLanes; i += V::kWidth) {
    const auto g = V::Load(from + i);
    V::Store(V::Load(sum_dy + i) + g, sum_dy + i);
    const auto centered = V::Load(in + i) - V::Load(mean + i);
    V::Store(V::Load(sum_dyx + i) + g * centered, sum_dyx + i);
  }
}

template <class V, class T>
static void BatchNormDx(const void* x, const void* dy, int64_t row_bytes,
                        int rows, const BatchNormLine& line, int line_step,
                        void* dx) {
  const T* in = static_cast<const T*>(x);
  const uint8_t* from = static_cast<const uint8_t*>(dy);
  uint8_t* to = static_cast<uint8_t*>(dx);
  BatchNormLine at = line;
  for (int t = 0; t < rows; ++t) {
    for (int l = 0; l < plane::kLanes; l += V::kWidth) {
      const auto centered = V::Load(in + l) - V::Load(at.mean + l);
      const auto g = V::Load(reinterpret_cast<const T*>(from) + l);
      const auto rest =
          g - (V::Load(at.shift + l) + centered * V::Load(at.slope + l));
      V::Store(V::Load(at.scale + l) * rest, reinterpret_cast<T*>(to) + l);
    }
    in += plane::kLanes;
    from += row_bytes;
    to += row_bytes;
    at = {at.mean + line_step, at.slope + line_step, at.shift + line_step,
          at.scale + line_step};
  }
}

template <class V>
static const BatchNormKernels* MakeBatchNormKernels() {
  static const BatchNormKernels kernels = {
      {BatchNormLaneSums<V, float>, BatchNormLaneSums<V, BF16>,
       BatchNormLaneSums<V, F16>},
      {BatchNormFlatSums<V, float>, BatchNormFlatSums<V, BF16>,
       BatchNormFlatSums<V, F16>},
      {BatchNormDx<V, float>, BatchNormDx<V, BF16>, BatchNormDx<V, F16>}};
  return &kernels;
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_BATCH_NORM_KERNELS_H_
