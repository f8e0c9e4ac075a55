// GPU kernel of GradientStats. (That of MemoryLimit needs no GPU code.)
#include "absl/strings/str_cat.h"
#include "cc/codec/items_gpu.h"
#include "cc/kernels/gpu_util.h"
#include "tensorflow/core/framework/register_types.h"

namespace comptrain {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class GradientStatsGpuOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& dy = ctx->input(0);
    const Tensor& previous = ctx->input(2);
    OP_REQUIRES(ctx, previous.NumElements() == 3,
                absl::InvalidArgumentError(
                    absl::StrCat("previous must have 3 elements, got ",
                                 previous.NumElements())));
    if (!ctx->input(1).scalar<bool>()() || dy.NumElements() == 0) {
      ctx->set_output(0, previous);
      return;
    }
    Tensor* stats = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({3}), &stats));
    Tensor scratch;
    OP_REQUIRES_OK(ctx, AllocateScratch(ctx, SummaryGpuScratchBytes(), &scratch));
    OP_REQUIRES_OK(
        ctx, ToAbsl(GradientGpuStats(
                 Data(dy), ToDType(dy.dtype()), dy.NumElements(),
                 Channels(dy.shape()), MutableData(&scratch),
                 stats->flat<float>().data(), GpuStream(ctx))));
  }
};

#define REGISTER(T)                                             \
  REGISTER_KERNEL_BUILDER(Name("Comptrain>GradientStats")       \
                              .Device(tensorflow::DEVICE_GPU)   \
                              .HostMemory("enabled")            \
                              .TypeConstraint<T>("T"),          \
                          GradientStatsGpuOp);
REGISTER(float)
REGISTER(Eigen::bfloat16)
REGISTER(Eigen::half)
#undef REGISTER

}  // namespace
}  // namespace comptrain
