// Internal: the loops of batch_norm.h over decoded values in cache, one table
// for each instruction set. All give the same bits: an element is computed by
// the same operations, and rows are added in order.
#pragma once

#include <cstdint>

#include "cc/codec/common/isa.h"
#include "cc/codec/common/half.h"

namespace comptrain {

// Rows of `width` values. A column has one channel.
struct BatchNormPanel {
  const float* x;
  int64_t x_stride;  // floats between rows
  const uint8_t* dy;
  int64_t dy_stride;  // bytes between rows
  int64_t rows;
  int64_t width;
  int64_t ahead;  // bytes from dy to the rows to come
};

// Of each column: sums of dy, of x - mean, and of dy * (x - mean).
struct BatchNormSums {
  double* dy;
  double* x;
  double* dyx;
};

// dx = scale * (dy - (shift + (x - mean) * slope)): `width` floats each.
struct BatchNormLine {
  const float* mean;
  const float* slope;
  const float* shift;
  const float* scale;
};

// Indexed by DType.
struct BatchNormKernels {
  // Adds sums over rows.
  void (*add_sums[3])(const BatchNormPanel& p, const float* mean,
                      const BatchNormSums& to);
  // dx: rows dy_stride apart, may be dy.
  void (*gradient[3])(const BatchNormPanel& p, const BatchNormLine& line,
                      uint8_t* dx);
  // n values as floats.
  void (*widen[3])(const uint8_t* from, int64_t n, float* to);
};

COMPTRAIN_KERNEL_TABLES(BatchNormKernels)

// The loops for V, a vector type: V::Floats of V::kWidth floats, with
// V::Load(const T*), V::Store(Floats, T*) and V::AddTo(Floats, double*). They
// take all rows of a few columns at a time, so that what belongs to columns
// stays in registers, and kVectors vectors of columns from j on, as many as
// fit; they return where they stopped.

struct BatchNormOne {
  static constexpr int kWidth = 1;
  using Floats = float;
  template <class T>
  static float Load(const T* p) {
    return ToFloat(*p);
  }
  template <class T>
  static void Store(float v, T* p) {
    FromFloat(v, p);
  }
  static void AddTo(float v, double* p) { *p += v; }
};

template <class V, class T, int kVectors>
struct BatchNormColumns {
  static constexpr int kStep = V::kWidth * kVectors;
  using Floats = typename V::Floats;

  static Floats Load(const float* row, int k) {
    return V::Load(row + k * V::kWidth);
  }
  static Floats Load(const uint8_t* row, int k) {
    return V::Load(reinterpret_cast<const T*>(row) + k * V::kWidth);
  }

  // Tiles are too narrow, and the decoding in between too long, for the
  // hardware to foresee the next rows. Into L2: into L1 it was no faster than
  // not at all, decoding needs that cache.
  static void Fetch(const uint8_t* row) {
    for (int at = 0; at < kStep * static_cast<int>(sizeof(T)); at += 64) {
      __builtin_prefetch(row + at, 0, 2);
    }
  }

  static int64_t AddSums(const BatchNormPanel& p, int64_t j, const float* mean,
                         const BatchNormSums& to) {
    for (; j + kStep <= p.width; j += kStep) {
      Floats center[kVectors], sum[kVectors], off[kVectors], product[kVectors];
      for (int k = 0; k < kVectors; ++k) {
        center[k] = Load(mean + j, k);
        sum[k] = off[k] = product[k] = Floats{};
      }
      const float* x = p.x + j;
      const uint8_t* dy = p.dy + j * sizeof(T);
      for (int64_t row = 0; row < p.rows; ++row) {
        Fetch(dy + p.ahead);
        for (int k = 0; k < kVectors; ++k) {
          const Floats g = Load(dy, k), d = Load(x, k) - center[k];
          sum[k] = sum[k] + g;
          off[k] = off[k] + d;
          product[k] = product[k] + g * d;
        }
        x += p.x_stride;
        dy += p.dy_stride;
      }
      for (int k = 0; k < kVectors; ++k) {
        V::AddTo(sum[k], to.dy + j + k * V::kWidth);
        V::AddTo(off[k], to.x + j + k * V::kWidth);
        V::AddTo(product[k], to.dyx + j + k * V::kWidth);
      }
    }
    return j;
  }

  static int64_t Gradient(const BatchNormPanel& p, int64_t j,
                          const BatchNormLine& line, uint8_t* to) {
    for (; j + kStep <= p.width; j += kStep) {
      Floats mean[kVectors], slope[kVectors], shift[kVectors], scale[kVectors];
      for (int k = 0; k < kVectors; ++k) {
        mean[k] = Load(line.mean + j, k);
        slope[k] = Load(line.slope + j, k);
        shift[k] = Load(line.shift + j, k);
        scale[k] = Load(line.scale + j, k);
      }
      const float* x = p.x + j;
      const uint8_t* dy = p.dy + j * sizeof(T);
      uint8_t* dx = to + j * sizeof(T);
      for (int64_t row = 0; row < p.rows; ++row) {
        Fetch(dy + p.ahead);
        if (dx != dy) Fetch(dx + p.ahead);
        for (int k = 0; k < kVectors; ++k) {
          const Floats term = (Load(x, k) - mean[k]) * slope[k];
          V::Store(scale[k] * (Load(dy, k) - (shift[k] + term)),
                   reinterpret_cast<T*>(dx) + k * V::kWidth);
        }
        x += p.x_stride;
        dy += p.dy_stride;
        dx += p.dy_stride;
      }
    }
    return j;
  }
};

template <class V, class T>
static void AddBatchNormSums(const BatchNormPanel& p, const float* mean,
                             const BatchNormSums& to) {
  int64_t j = BatchNormColumns<V, T, 2>::AddSums(p, 0, mean, to);
  j = BatchNormColumns<V, T, 1>::AddSums(p, j, mean, to);
  BatchNormColumns<BatchNormOne, T, 1>::AddSums(p, j, mean, to);
}

template <class V, class T>
static void BatchNormDx(const BatchNormPanel& p, const BatchNormLine& line,
                        uint8_t* dx) {
  int64_t j = BatchNormColumns<V, T, 2>::Gradient(p, 0, line, dx);
  j = BatchNormColumns<V, T, 1>::Gradient(p, j, line, dx);
  BatchNormColumns<BatchNormOne, T, 1>::Gradient(p, j, line, dx);
}

template <class V, class T>
static void WidenValues(const uint8_t* from, int64_t n, float* to) {
  const T* const values = reinterpret_cast<const T*>(from);
  int64_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth)
    V::Store(V::Load(values + i), to + i);
  for (; i < n; ++i) to[i] = ToFloat(values[i]);
}

template <class V>
static constexpr BatchNormKernels BatchNormTable() {
  return {{AddBatchNormSums<V, float>, AddBatchNormSums<V, BF16>,
           AddBatchNormSums<V, F16>},
          {BatchNormDx<V, float>, BatchNormDx<V, BF16>, BatchNormDx<V, F16>},
          {WidenValues<V, float>, WidenValues<V, BF16>, WidenValues<V, F16>}};
}

}  // namespace comptrain
