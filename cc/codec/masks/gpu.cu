#include "cc/codec/masks/gpu.h"

#include "cc/codec/common/gpu_items.h"
#include "cc/codec/masks/bitmask.h"
#include "cc/codec/masks/items.h"

namespace comptrain {

using gpu::ForTypedItems;

namespace {

int64_t Elements(const PoolShape& s, const int64_t size[3]) {
  return s.batch * size[0] * size[1] * size[2] * s.channels;
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
  const int bits = PoolIndexBits(shape);
  const int64_t elements = Elements(shape, shape.out_size);
  return ForTypedItems(
      "max pooling", dtype, bits == 16 ? elements : PoolIndexBytes(shape),
      [&](auto type) {
        using T = decltype(type);
        return PoolMaxima<T>{
            shape, bits, elements, static_cast<const T*>(x), static_cast<T*>(y),
            index};
      },
      cuda_stream);
}

Status GpuMaxPoolGradient(const uint8_t* index, DType dtype,
                          const PoolShape& shape, const void* dy, void* dx,
                          CUstream_st* cuda_stream) {
  return ForTypedItems(
      "the gradient of max pooling", dtype, Elements(shape, shape.in_size),
      [&](auto type) {
        using T = decltype(type);
        return PoolScatter<T>{shape, PoolIndexBits(shape), index,
                              static_cast<const T*>(dy), static_cast<T*>(dx)};
      },
      cuda_stream);
}

}  // namespace comptrain
