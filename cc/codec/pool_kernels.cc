#include "cc/codec/pool_kernels.h"

namespace comptrain {
namespace {

template <class P, class T>
void Index(const void* x, const PoolOffset* offsets, int64_t n_offsets,
           int64_t channels, void* y, uint8_t* positions) {
  PoolIndexTail<P>(static_cast<const T*>(x), offsets, n_offsets, 0, channels,
                   static_cast<T*>(y), positions);
}

template <class P, class T>
void Gradient(const PoolCover* covers, int64_t n_covers, int64_t channels,
              void* dx) {
  PoolGradientTail<P>(covers, n_covers, 0, channels, static_cast<T*>(dx));
}

template <class P>
constexpr PoolKernels kTable = {
    {Index<P, float>, Index<P, BF16>, Index<P, F16>},
    {Gradient<P, float>, Gradient<P, BF16>, Gradient<P, F16>},
    PoolPackTail,
    PoolUnpackTail};

}  // namespace

const PoolKernels* PoolKernelsScalar() { return &kTable<uint8_t>; }
const PoolKernels* PoolKernelsWide() { return &kTable<uint16_t>; }

}  // namespace comptrain
