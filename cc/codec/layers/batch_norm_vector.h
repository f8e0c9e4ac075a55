// A vector of floats as batch_norm_kernels.h takes it, for avx2.cc and
// avx512.cc.
#pragma once

#include "cc/codec/common/vector.h"
#include "cc/codec/layers/batch_norm_kernels.h"

namespace comptrain {
namespace {

struct VectorFloats {
  static constexpr int kWidth = comptrain::kWidth;
  using Floats = comptrain::Floats;
  template <class T>
  static Floats Load(const T* p) {
    return comptrain::Load(p);
  }
  template <class T>
  static void Store(Floats v, T* p) {
    comptrain::Store(v, p);
  }
  static void AddTo(Floats v, double* p) {
    double* const q = p + kWidth / 2;
    COMPTRAIN_V(storeu_pd)(p, COMPTRAIN_V(loadu_pd)(p) + LowDoubles(v));
    COMPTRAIN_V(storeu_pd)(q, COMPTRAIN_V(loadu_pd)(q) + HighDoubles(v));
  }
};

}  // namespace

constexpr BatchNormKernels COMPTRAIN_NAME(kBatchNormKernels) =
    BatchNormTable<VectorFloats>();

}  // namespace comptrain
