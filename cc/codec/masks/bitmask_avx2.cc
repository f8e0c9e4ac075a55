#include "cc/codec/masks/bitmask_kernels.h"

#if defined(__AVX2__)
#include "cc/codec/common/half_avx2.h"

namespace comptrain {
namespace {

template <class T>
void Pack(const void* x, int64_t n, float lower, float upper, uint8_t* bits) {
  const T* in = static_cast<const T*>(x);
  const __m256 low = _mm256_set1_ps(lower), high = _mm256_set1_ps(upper);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = Load8(in + i);
    const __m256 inside = _mm256_and_ps(_mm256_cmp_ps(low, v, _CMP_LT_OQ),
                                        _mm256_cmp_ps(v, high, _CMP_LT_OQ));
    bits[i / 8] = static_cast<uint8_t>(_mm256_movemask_ps(inside));
  }
  PackScalar<T>(in + i, n - i, lower, upper, bits + i / 8);
}

// Eight bits of the mask as eight 32-bit lanes of zeros or ones.
inline __m256i Expand8(unsigned bits) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
  return _mm256_cmpeq_epi32(_mm256_and_si256(all, bit), bit);
}

// Sixteen bits of the mask as sixteen 16-bit lanes.
inline __m256i Expand16(uint16_t bits) {
  const __m256i bit = _mm256_setr_epi16(
      1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384,
      static_cast<int16_t>(0x8000));
  const __m256i all = _mm256_set1_epi16(static_cast<int16_t>(bits));
  return _mm256_cmpeq_epi16(_mm256_and_si256(all, bit), bit);
}

// on == 1, off == 0: elements pass or vanish. Returns how many it has done.
int64_t Select(const uint8_t* bits, int64_t n, const float* dy, float* dx) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 keep = _mm256_castsi256_ps(Expand8(bits[i / 8]));
    _mm256_storeu_ps(dx + i, _mm256_and_ps(keep, _mm256_loadu_ps(dy + i)));
  }
  return i;
}

template <class T>
int64_t Select(const uint8_t* bits, int64_t n, const T* dy, T* dx) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    uint16_t word;
    std::memcpy(&word, bits + i / 8, sizeof(word));
    const __m256i v =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(dy + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dx + i),
                        _mm256_and_si256(Expand16(word), v));
  }
  return i;
}

// 1 passes everything, NaN payloads too.
inline __m256 Scale(__m256 v, float factor) {
  if (factor == 1.0f) return v;
  return _mm256_mul_ps(v, _mm256_set1_ps(factor));
}

template <class T>
int64_t Blend(const uint8_t* bits, int64_t n, float on, float off, const T* dy,
              T* dx) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = Load8(dy + i);
    const __m256 keep = _mm256_castsi256_ps(Expand8(bits[i / 8]));
    const __m256 dropped = off == 0.0f ? _mm256_setzero_ps() : Scale(v, off);
    Store8(_mm256_blendv_ps(dropped, Scale(v, on), keep), dx + i);
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

const BitmaskKernels* BitmaskKernelsAvx2() {
  static const BitmaskKernels kernels = {
      {Pack<float>, Pack<BF16>, Pack<F16>},
      {Gradient<float>, Gradient<BF16>, Gradient<F16>}};
  return &kernels;
}

}  // namespace comptrain

#else

namespace comptrain {
const BitmaskKernels* BitmaskKernelsAvx2() { return nullptr; }
}  // namespace comptrain

#endif
