// CPU kernels of Bitmask, MaxPool and their gradients.
#include "cc/kernels/masks/ops.h"
#include "cc/kernels/common/register.h"

namespace comptrain {
namespace {

struct Cpu {
  static Status Pack(OpKernelContext* ctx, const Tensor& x, float lower,
                     float upper, uint8_t* bits) {
    BitmaskPack(TensorInOf(x), {lower, upper}, bits, WorkerThreads(ctx));
    return {};
  }
  static Status Unpack(OpKernelContext* ctx, const uint8_t* bits, float on,
                       float off, const Tensor& dy, void* dx) {
    BitmaskGradient(bits, {on, off}, TensorInOf(dy), dx, WorkerThreads(ctx));
    return {};
  }
  static Status Pool(OpKernelContext* ctx, const Tensor& x,
                     const PoolShape& shape, void* y, uint8_t* index) {
    MaxPoolIndex(Data(x), ToDType(x.dtype()), shape, y, index,
                 WorkerThreads(ctx));
    return {};
  }
  static Status Scatter(OpKernelContext* ctx, const uint8_t* index,
                        const PoolShape& shape, const Tensor& dy, void* dx) {
    MaxPoolGradient(index, ToDType(dy.dtype()), shape, Data(dy), dx,
                    WorkerThreads(ctx));
    return {};
  }
};

COMPTRAIN_REGISTER("Bitmask", tensorflow::DEVICE_CPU, BitmaskOp<Cpu>)
COMPTRAIN_REGISTER("BitmaskGrad", tensorflow::DEVICE_CPU, BitmaskGradOp<Cpu>)
COMPTRAIN_REGISTER("MaxPool", tensorflow::DEVICE_CPU, MaxPoolOp<Cpu>)
COMPTRAIN_REGISTER("MaxPoolGrad", tensorflow::DEVICE_CPU, MaxPoolGradOp<Cpu>)

}  // namespace
}  // namespace comptrain
