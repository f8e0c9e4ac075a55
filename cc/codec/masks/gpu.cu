#include "cc/codec/masks/gpu.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cc/codec/common/gpu_items.h"
#include "cc/codec/masks/bitmask.h"
#include "cc/codec/masks/items.h"

namespace comptrain {

using gpu::ForTypedItems;

namespace {

int64_t Elements(const PoolShape& s, const int64_t size[3]) {
  return s.batch * size[0] * size[1] * size[2] * s.channels;
}

// Calls f with a number of the type that counts all elements, and a window's
// past the last one.
template <class F>
Status WithIndex(const PoolShape& s, const F& f) {
  const int64_t most =
      std::max(Elements(s, s.in_size), Elements(s, s.out_size)) +
      (s.window[0] * s.window[1] * s.window[2] + 8) * s.channels;
  return most < INT32_MAX ? f(int32_t{0}) : f(int64_t{0});
}

}  // namespace

Status GpuBitmaskPack(const TensorIn& x, const Interval& where, uint8_t* bits,
                      CUstream_st* cuda_stream) {
  return ForTypedItems(
      "packing bits", x.dtype, BitmaskBytes(x.n),
      [&](auto type) {
        using T = decltype(type);
        return PackBits<T>{static_cast<const T*>(x.data), x.n, where.lower,
                           where.upper, bits};
      },
      cuda_stream);
}

Status GpuBitmaskGradient(const uint8_t* bits, const MaskFactors& factors,
                          const TensorIn& dy, void* dx,
                          CUstream_st* cuda_stream) {
  return ForTypedItems(
      "a gradient by bits", dy.dtype, dy.n,
      [&](auto type) {
        using T = decltype(type);
        return ApplyBits<T>{bits, factors.on, factors.off,
                            static_cast<const T*>(dy.data),
                            static_cast<T*>(dx)};
      },
      cuda_stream);
}

Status GpuMaxPoolIndex(const void* x, DType dtype, const PoolShape& shape,
                       void* y, uint8_t* index, CUstream_st* cuda_stream) {
  const int64_t elements = Elements(shape, shape.out_size);
  const int bits = PoolIndexBits(shape);
  const auto run = [&](auto number, auto wide, int64_t items) {
    return ForTypedItems(
        "max pooling", dtype, items,
        [&](auto type) {
          using T = decltype(type);
          return PoolMaxima<T, decltype(number), decltype(wide)::value>(
              shape, elements, static_cast<const T*>(x), static_cast<T*>(y),
              index);
        },
        cuda_stream);
  };
  return WithIndex(shape, [&](auto number) {
    if (bits > 1 && shape.channels % kPoolChannels == 0) {
      return run(number, std::true_type(), elements / kPoolChannels);
    }
    return run(number, std::false_type(),
               bits == 16 ? elements : PoolIndexBytes(shape));
  });
}

Status GpuMaxPoolGradient(const uint8_t* index, DType dtype,
                          const PoolShape& shape, const void* dy, void* dx,
                          CUstream_st* cuda_stream) {
  const auto run = [&](auto number, auto count) {
    constexpr int kCount = decltype(count)::value;
    return ForTypedItems(
        "the gradient of max pooling", dtype,
        Elements(shape, shape.in_size) / kCount,
        [&](auto type) {
          using T = decltype(type);
          return PoolScatter<T, decltype(number), kCount>(
              shape, index, static_cast<const T*>(dy), static_cast<T*>(dx));
        },
        cuda_stream);
  };
  return WithIndex(shape, [&](auto number) {
    return shape.channels % kPoolChannels == 0
               ? run(number, std::integral_constant<int, kPoolChannels>())
               : run(number, std::integral_constant<int, 1>());
  });
}

}  // namespace comptrain
