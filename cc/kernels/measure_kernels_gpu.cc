// GPU kernel of GradientStats. (That of MemoryLimit needs no GPU code.)
#include "cc/codec/items_gpu.h"
#include "cc/kernels/gpu_util.h"
#include "cc/kernels/measure_kernels.h"
#include "cc/kernels/register.h"

namespace comptrain {
namespace {

struct Gpu {
  static absl::Status Measure(tensorflow::OpKernelContext* ctx,
                              const tensorflow::Tensor& dy, float* stats) {
    tensorflow::Tensor scratch;
    const absl::Status s =
        AllocateScratch(ctx, SummaryGpuScratchBytes(), &scratch);
    if (!s.ok()) return s;
    return ToAbsl(GradientGpuStats(
        Data(dy), ToDType(dy.dtype()), dy.NumElements(), Channels(dy.shape()),
        MutableData(&scratch), stats, GpuStream(ctx)));
  }
};

COMPTRAIN_REGISTER("GradientStats", tensorflow::DEVICE_GPU, GradientStatsOp<Gpu>,
                   .HostMemory("enabled"))

}  // namespace
}  // namespace comptrain
