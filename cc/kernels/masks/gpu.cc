// GPU kernels of Bitmask, MaxPool and their gradients.
#include "cc/codec/masks/gpu.h"
#include "cc/kernels/common/gpu.h"
#include "cc/kernels/masks/ops.h"
#include "cc/kernels/common/register.h"

namespace comptrain {
namespace {

struct Gpu {
  static Status Pack(OpKernelContext* ctx, const Tensor& x, float lower,
                     float upper, uint8_t* bits) {
    return GpuBitmaskPack(TensorInOf(x), {lower, upper}, bits, CudaStream(ctx));
  }
  static Status Unpack(OpKernelContext* ctx, const uint8_t* bits, float on,
                       float off, const Tensor& dy, void* dx) {
    return GpuBitmaskGradient(bits, {on, off}, TensorInOf(dy), dx,
                              CudaStream(ctx));
  }
  static Status Pool(OpKernelContext* ctx, const Tensor& x,
                     const PoolShape& shape, void* y, uint8_t* index) {
    return GpuMaxPoolIndex(Data(x), ToDType(x.dtype()), shape, y, index,
                           CudaStream(ctx));
  }
  static Status Scatter(OpKernelContext* ctx, const uint8_t* index,
                        const PoolShape& shape, const Tensor& dy, void* dx) {
    return GpuMaxPoolGradient(index, ToDType(dy.dtype()), shape, Data(dy), dx,
                              CudaStream(ctx));
  }
};

COMPTRAIN_REGISTER("Bitmask", tensorflow::DEVICE_GPU, BitmaskOp<Gpu>)
COMPTRAIN_REGISTER("BitmaskGrad", tensorflow::DEVICE_GPU, BitmaskGradOp<Gpu>)
COMPTRAIN_REGISTER("MaxPool", tensorflow::DEVICE_GPU, MaxPoolOp<Gpu>)
COMPTRAIN_REGISTER("MaxPoolGrad", tensorflow::DEVICE_GPU, MaxPoolGradOp<Gpu>,
                   .HostMemory("input_shape"))

}  // namespace
}  // namespace comptrain
