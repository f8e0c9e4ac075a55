// GPU kernels of Bitmask, MaxPool and their gradients.
#include "cc/codec/items_gpu.h"
#include "cc/kernels/gpu_util.h"
#include "cc/kernels/mask_kernels.h"
#include "tensorflow/core/framework/register_types.h"

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

#define REGISTER(T)                                                         \
  REGISTER_KERNEL_BUILDER(Name("Comptrain>Bitmask")                         \
                              .Device(tensorflow::DEVICE_GPU)               \
                              .TypeConstraint<T>("T"),                      \
                          BitmaskOp<Gpu>);                                  \
  REGISTER_KERNEL_BUILDER(Name("Comptrain>BitmaskGrad")                     \
                              .Device(tensorflow::DEVICE_GPU)               \
                              .TypeConstraint<T>("T"),                      \
                          BitmaskGradOp<Gpu>);                              \
  REGISTER_KERNEL_BUILDER(Name("Comptrain>MaxPool")                         \
                              .Device(tensorflow::DEVICE_GPU)               \
                              .TypeConstraint<T>("T"),                      \
                          MaxPoolOp<Gpu>);                                  \
  REGISTER_KERNEL_BUILDER(Name("Comptrain>MaxPoolGrad")                     \
                              .Device(tensorflow::DEVICE_GPU)               \
                              .HostMemory("input_shape")                    \
                              .TypeConstraint<T>("T"),                      \
                          MaxPoolGradOp<Gpu>);
REGISTER(float)
REGISTER(Eigen::bfloat16)
REGISTER(Eigen::half)
#undef REGISTER

}  // namespace
}  // namespace comptrain
