// Kernel of MemoryLimit, for any device.
#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc/kernels/common/util.h"
#include "tensorflow/core/framework/allocator.h"

namespace comptrain {
namespace {

// Set by a failure, cleared by the first check that finds memory back under the
// limit: until then the allocator's peak belongs to the failed step.
std::atomic<bool> peak_is_history{false};

std::string Megabytes(int64_t bytes) {
  return absl::StrCat(static_cast<double>(bytes) / 1e6, " MB");
}

class MemoryLimitOp : public OpKernel {
 public:
  explicit MemoryLimitOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("where", &where_));
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckShape("limit_bytes", ctx->input(1).shape(),
                                   TensorShape(), "a scalar"));
    const int64_t limit = ctx->input(1).scalar<int64_t>()();
    tensorflow::Allocator* allocator = ctx->device()->GetAllocator({});
    const auto stats = allocator->GetStats();
    if (limit > 0 && stats) {
      int64_t peak = stats->peak_bytes_in_use;
      if (peak > limit && peak_is_history && stats->bytes_in_use <= limit) {
        if (allocator->ClearStats()) peak = stats->bytes_in_use;
        peak_is_history = false;
      }
      if (peak > limit) peak_is_history = true;
      OP_REQUIRES(
          ctx, peak <= limit,
          absl::ResourceExhaustedError(absl::StrCat(
              "memory limit of ", Megabytes(limit), " exceeded at ",
              where_.empty() ? name() : where_, ": the peak is ",
              Megabytes(peak), ", of which ", Megabytes(stats->bytes_in_use),
              " are in use. Lower the batch size, compress the model "
              "(tf_comptrain.compress_model), have tf_comptrain.fit "
              "compute it in microbatches, or raise `limit_bytes`.")));
    }
    ctx->set_output(0, ctx->input(0));
  }

 private:
  std::string where_;
};

REGISTER_KERNEL_BUILDER(
    Name("Comptrain>MemoryLimit").Device(tensorflow::DEVICE_CPU),
    MemoryLimitOp);
// It reads only the device's allocator, so it needs no GPU code.
REGISTER_KERNEL_BUILDER(Name("Comptrain>MemoryLimit")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("limit_bytes"),
                        MemoryLimitOp);

}  // namespace
}  // namespace comptrain
