#include "cc/codec/masks/pool_kernels.h"

namespace comptrain {
namespace {

template <class P, class T>
void Index(const void* x, const PoolRun& run, void* y, uint8_t* positions) {
  PoolForPixels<P, T>(x, run, y, positions,
                      [&run](const T* in, T* out, uint8_t* to) {
                        PoolIndexTail<P>(in, run, 0, run.channels, out, to);
                      });
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

constexpr PoolKernels kPoolKernelsScalar = kTable<uint8_t>;
constexpr PoolKernels kPoolKernelsWide = kTable<uint16_t>;

}  // namespace comptrain
