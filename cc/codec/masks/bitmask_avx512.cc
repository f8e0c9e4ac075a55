#include "cc/codec/masks/bitmask_kernels.h"

#if defined(__AVX512VBMI2__)
#include "cc/codec/common/half_avx512.h"

namespace comptrain {
namespace {

template <class T>
void Pack(const void* x, int64_t n, float lower, float upper, uint8_t* bits) {
  const T* in = static_cast<const T*>(x);
  const __m512 low = _mm512_set1_ps(lower), high = _mm512_set1_ps(upper);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 v = Load16(in + i, kAll16);
    const __mmask16 above = _mm512_cmp_ps_mask(low, v, _CMP_LT_OQ);
    const uint16_t inside = _mm512_mask_cmp_ps_mask(above, v, high, _CMP_LT_OQ);
    std::memcpy(bits + i / 8, &inside, sizeof(inside));
  }
  PackScalar<T>(in + i, n - i, lower, upper, bits + i / 8);
}

// on == 1, off == 0: elements pass or vanish. Returns how many it has done.
int64_t Select(const uint8_t* bits, int64_t n, const float* dy, float* dx) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    uint16_t keep;
    std::memcpy(&keep, bits + i / 8, sizeof(keep));
    _mm512_storeu_ps(dx + i,
                     _mm512_maskz_mov_ps(keep, _mm512_loadu_ps(dy + i)));
  }
  return i;
}

template <class T>
int64_t Select(const uint8_t* bits, int64_t n, const T* dy, T* dx) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    uint32_t keep;
    std::memcpy(&keep, bits + i / 8, sizeof(keep));
    const __m512i v = _mm512_loadu_si512(dy + i);
    _mm512_storeu_si512(dx + i, _mm512_maskz_mov_epi16(keep, v));
  }
  return i;
}

// 1 passes everything, NaN payloads too.
inline __m512 Scale(__m512 v, float factor) {
  if (factor == 1.0f) return v;
  return _mm512_mul_ps(v, _mm512_set1_ps(factor));
}

template <class T>
int64_t Blend(const uint8_t* bits, int64_t n, float on, float off, const T* dy,
              T* dx) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    uint16_t keep;
    std::memcpy(&keep, bits + i / 8, sizeof(keep));
    const __m512 v = Load16(dy + i, kAll16);
    const __m512 dropped = off == 0.0f ? _mm512_setzero_ps() : Scale(v, off);
    Store16(_mm512_mask_blend_ps(keep, dropped, Scale(v, on)), dx + i, kAll16);
  }
  return i;
}

template <class T>
void Gradient(const uint8_t* bits, int64_t n, float on, float off,
              const void* dy, void* dx) {
  const T* in = static_cast<const T*>(dy);
  T* out = static_cast<T*>(dx);
  const int64_t done = on == 1.0f && off == 0.0f
                           ? Select(bits, n, in, out)
                           : Blend(bits, n, on, off, in, out);
  GradientScalar<T>(bits + done / 8, n - done, on, off, in + done, out + done);
}

}  // namespace

const BitmaskKernels* BitmaskKernelsAvx512() {
  static const BitmaskKernels kernels = {
      {Pack<float>, Pack<BF16>, Pack<F16>},
      {Gradient<float>, Gradient<BF16>, Gradient<F16>}};
  return &kernels;
}

}  // namespace comptrain

#else

namespace comptrain {
const BitmaskKernels* BitmaskKernelsAvx512() { return nullptr; }
}  // namespace comptrain

#endif
