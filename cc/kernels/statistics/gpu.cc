// GPU kernel of GradientStats. (That of MemoryLimit needs no GPU code.)
#include "cc/codec/statistics/gpu.h"
#include "cc/kernels/common/gpu.h"
#include "cc/kernels/statistics/ops.h"
#include "cc/kernels/common/register.h"

namespace comptrain {
namespace {

struct Gpu {
  static absl::Status Measure(OpKernelContext* ctx, const Tensor& dy,
                              float* stats) {
    Tensor scratch;
    const absl::Status s =
        AllocateScratch(ctx, GpuSummaryScratchBytes(), &scratch);
    if (!s.ok()) return s;
    return ToAbsl(GpuGradientStats(TensorInOf(dy), Channels(dy.shape()),
                                   MutableData(&scratch), stats,
                                   CudaStream(ctx)));
  }
};

COMPTRAIN_REGISTER("GradientStats", tensorflow::DEVICE_GPU,
                   GradientStatsOp<Gpu>, .HostMemory("enabled"))

}  // namespace
}  // namespace comptrain
