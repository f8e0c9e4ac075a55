#include "cc/codec/layers/batch_norm_kernels.h"

#if defined(__AVX512VBMI2__)
#include "cc/codec/common/half_avx512.h"

namespace comptrain {
namespace {

struct Vector16 {
  static constexpr int kWidth = 16;
  using Floats = __m512;
  template <class T>
  static Floats Load(const T* p) {
    return Load16(p, kAll16);
  }
  template <class T>
  static void Store(Floats v, T* p) {
    Store16(v, p, kAll16);
  }
  static void AddTo(Floats v, double* p) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
    _mm512_storeu_pd(p, _mm512_loadu_pd(p) + low);
    _mm512_storeu_pd(p + 8, _mm512_loadu_pd(p + 8) + high);
  }
};

}  // namespace

const BatchNormKernels* BatchNormKernelsAvx512() {
  return MakeBatchNormKernels<Vector16>();
}

}  // namespace comptrain

#else

namespace comptrain {
const BatchNormKernels* BatchNormKernelsAvx512() { return nullptr; }
}  // namespace comptrain

#endif
