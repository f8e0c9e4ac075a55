// zvc: the reference every instruction set must equal.
#include <cstdint>

#include "cc/codec/zvc/kernels.h"

namespace comptrain::zvc {
namespace {

template <class T>
int Count(const void* x) {
  const T* in = static_cast<const T*>(x);
  int count = 0;
  for (int i = 0; i < kChunkValues; ++i) count += in[i] != 0;
  return count;
}

template <class T>
void Pack(const void* x, uint32_t* mask, void* values) {
  const T* in = static_cast<const T*>(x);
  T* out = static_cast<T*>(values);
  for (int w = 0; w < kMaskWords; ++w) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) {
      const T v = *in++;
      *out = v;  // overwritten by the next one when zero
      out += v != 0;
      bits |= static_cast<uint32_t>(v != 0) << i;
    }
    mask[w] = bits;
  }
}

template <class T>
void Unpack(const uint32_t* mask, const void* values, void* out) {
  const T* in = static_cast<const T*>(values);
  T* to = static_cast<T*>(out);
  for (int w = 0; w < kMaskWords; ++w) {
    for (int i = 0; i < 32; ++i) {
      const bool on = mask[w] >> i & 1;
      *to++ = on ? *in : T{0};
      in += on;
    }
  }
}

}  // namespace

constexpr ChunkKernels kChunkKernelsScalar = {
    {Count<uint16_t>, Count<uint32_t>},
    {Pack<uint16_t>, Pack<uint32_t>},
    {Unpack<uint16_t>, Unpack<uint32_t>},
    CountOnes};

}  // namespace comptrain::zvc
