// GPU kernels of Bitmask, MaxPool and their gradients.
#include "cc/codec/items_gpu.h"
#include "cc/kernels/gpu_util.h"
#include "cc/kernels/mask_kernels.h"
#include "cc/kernels/register.h"

namespace comptrain {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

struct Gpu {
  static Status Pack(OpKernelContext* ctx, const Tensor& x, float lower,
                     float upper, uint8_t* bits) {
    return BitmaskGpuPack(Data(x), ToDType(x.dtype()), x.NumElements(), lower,
                          upper, bits, GpuStream(ctx));
  }
  static Status Unpack(OpKernelContext* ctx, const uint8_t* bits, float on,
                       float off, const Tensor& dy, void* dx) {
    return BitmaskGpuGradient(bits, ToDType(dy.dtype()), dy.NumElements(), on,
                              off, Data(dy), dx, GpuStream(ctx));
  }
  static Status Pool(OpKernelContext* ctx, const Tensor& x,
                     const PoolShape& shape, void* y, uint8_t* index) {
    return MaxPoolGpuIndex(Data(x), ToDType(x.dtype()), shape, y, index,
                           GpuStream(ctx));
  }
  static Status Scatter(OpKernelContext* ctx, const uint8_t* index,
                        const PoolShape& shape, const Tensor& dy, void* dx) {
    return MaxPoolGpuGradient(index, ToDType(dy.dtype()), shape, Data(dy), dx,
                              GpuStream(ctx));
  }
};

COMPTRAIN_REGISTER("Bitmask", tensorflow::DEVICE_GPU, BitmaskOp<Gpu>)
COMPTRAIN_REGISTER("BitmaskGrad", tensorflow::DEVICE_GPU, BitmaskGradOp<Gpu>)
COMPTRAIN_REGISTER("MaxPool", tensorflow::DEVICE_GPU, MaxPoolOp<Gpu>)
COMPTRAIN_REGISTER("MaxPoolGrad", tensorflow::DEVICE_GPU, MaxPoolGradOp<Gpu>,
                   .HostMemory("input_shape"))

}  // namespace
}  // namespace comptrain
