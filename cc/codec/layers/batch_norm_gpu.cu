#include "cc/codec/layers/batch_norm_gpu.h"

#include "cc/codec/layers/batch_norm_gpu_items.h"

namespace comptrain {

Status GpuBatchNormGradient(const TensorIn& x_hat, const void* dy,
                            const BatchNormChannels& of, void* scratch,
                            const NormGradients& out,
                            CUstream_st* cuda_stream) {
  const int64_t rows = x_hat.n / of.channels;
  if (rows == 0) {
    const size_t bytes = sizeof(float) * static_cast<size_t>(of.channels);
    const Status s = gpu::CheckCuda(
        "GPU kernels", cudaMemsetAsync(out.dgamma, 0, bytes, cuda_stream),
        "clearing");
    if (!s.ok()) return s;
    return gpu::CheckCuda("GPU kernels",
                          cudaMemsetAsync(out.dbeta, 0, bytes, cuda_stream),
                          "clearing");
  }
  Status s;
  WithStorageType(x_hat.dtype, [&](auto type) {
    using T = decltype(type);
    s = gpu::BatchNormGradientByItems(
        gpu::BatchNormItems<T, ItemOf<T>>{{static_cast<const T*>(x_hat.data)},
                                          static_cast<const T*>(dy),
                                          x_hat.n},
        of, scratch, out, cuda_stream);
  });
  return s;
}

}  // namespace comptrain
