#include "cc/codec/layers/batch_norm_kernels.h"

#if defined(__AVX2__)
#include "cc/codec/common/half_avx2.h"

namespace comptrain {
namespace {

struct Vector8 {
  static constexpr int kWidth = 8;
  using Floats = __m256;
  template <class T>
  static Floats Load(const T* p) {
    return Load8(p);
  }
  template <class T>
  static void Store(Floats v, T* p) {
    Store8(v, p);
  }
  static void AddTo(Floats v, double* p) {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    _mm256_storeu_pd(p, _mm256_loadu_pd(p) + low);
    _mm256_storeu_pd(p + 4, _mm256_loadu_pd(p + 4) + high);
  }
};

}  // namespace

const BatchNormKernels* BatchNormKernelsAvx2() {
  return MakeBatchNormKernels<Vector8>();
}

}  // namespace comptrain

#else

namespace comptrain {
const BatchNormKernels* BatchNormKernelsAvx2() { return nullptr; }
}  // namespace comptrain

#endif
