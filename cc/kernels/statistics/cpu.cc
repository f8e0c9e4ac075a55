// CPU kernel of GradientStats.
#include "cc/codec/statistics/gradient_stats.h"
#include "cc/kernels/statistics/ops.h"
#include "cc/kernels/common/register.h"
#include "cc/kernels/common/util.h"

namespace comptrain {
namespace {

struct Cpu {
  static absl::Status Measure(OpKernelContext* ctx, const Tensor& dy,
                              float* stats) {
    const GradientStats s =
        MeasureGradient(Data(dy), ToDType(dy.dtype()), dy.NumElements(),
                        Channels(dy.shape()), WorkerThreads(ctx));
    stats[0] = s.mean_channel_sum_sq;
    stats[1] = s.mean_abs;
    stats[2] = s.nonfinite;
    return absl::OkStatus();
  }
};

COMPTRAIN_REGISTER("GradientStats", tensorflow::DEVICE_CPU,
                   GradientStatsOp<Cpu>)

}  // namespace
}  // namespace comptrain
