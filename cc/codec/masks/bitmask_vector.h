// bitmask_kernels.h over vectors, for avx2.cc and avx512.cc.
#pragma once

#include "cc/codec/common/vector.h"
#include "cc/codec/masks/bitmask_kernels.h"

namespace comptrain {
namespace {

// As many bits as a vector has elements.
inline uint32_t LoadBits(const uint8_t* bits, int elements) {
  uint32_t word = 0;
  std::memcpy(&word, bits, elements / 8);
  return word;
}

template <class T>
void PackBits(const void* x, int64_t n, float lower, float upper,
              uint8_t* bits) {
  const T* in = static_cast<const T*>(x);
  const Floats low = AllFloats(lower), high = AllFloats(upper);
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Floats v = Load(in + i);
    const uint32_t inside =
        BitsOf(Compare<_CMP_LT_OQ>(low, v) & Compare<_CMP_LT_OQ>(v, high));
    std::memcpy(bits + i / 8, &inside, kWidth / 8);
  }
  PackScalar<T>(in + i, n - i, lower, upper, bits + i / 8);
}

// on == 1, off == 0: elements pass or vanish. Returns how many it has done.
template <class T>
int64_t Select(const uint8_t* bits, int64_t n, const T* dy, T* dx) {
  constexpr int kElements = 4 * kWidth / static_cast<int>(sizeof(T));
  int64_t i = 0;
  for (; i + kElements <= n; i += kElements) {
    const uint32_t keep = LoadBits(bits + i / 8, kElements);
    const Ints v = LoadInts(dy + i);
    StoreInts(sizeof(T) == 4 ? Keep(v, MaskOf(keep)) : KeepBits16(v, keep),
              dx + i);
  }
  return i;
}

// 1 passes everything, NaN payloads too.
inline Floats Scale(Floats v, float factor) {
  return factor == 1.0f ? v : v * AllFloats(factor);
}

template <class T>
int64_t Blend(const uint8_t* bits, int64_t n, float on, float off, const T* dy,
              T* dx) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Floats v = Load(dy + i);
    Store(Choose(MaskOf(LoadBits(bits + i / 8, kWidth)), Scale(v, on),
                 off == 0.0f ? Floats{} : Scale(v, off)),
          dx + i);
  }
  return i;
}

template <class T>
void ApplyBits(const uint8_t* bits, int64_t n, float on, float off,
               const void* dy, void* dx) {
  const T* in = static_cast<const T*>(dy);
  T* out = static_cast<T*>(dx);
  const int64_t done = on == 1.0f && off == 0.0f
                           ? Select(bits, n, in, out)
                           : Blend(bits, n, on, off, in, out);
  GradientScalar<T>(bits + done / 8, n - done, on, off, in + done, out + done);
}

}  // namespace

constexpr BitmaskKernels COMPTRAIN_NAME(kBitmaskKernels) = {
    {PackBits<float>, PackBits<BF16>, PackBits<F16>},
    {ApplyBits<float>, ApplyBits<BF16>, ApplyBits<F16>}};

}  // namespace comptrain
