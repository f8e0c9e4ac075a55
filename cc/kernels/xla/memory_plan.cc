// What XLA's compiler plans for the memory of a program: Comptrain>MemoryPlan.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/client/client_library.h"
#include "xla/client/executable_build_options.h"
#include "xla/client/local_client.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/service/buffer_assignment.h"
#include "xla/service/executable.h"
#include "xla/service/hlo.pb.h"
#include "xla/service/hlo_value.h"
#include "xla/shape_util.h"

namespace comptrain {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

struct Buffer {
  int64_t bytes;
  std::string made_by;  // the TensorFlow operation, or %instruction
  std::string shape;
};

struct Plan {
  int64_t temporary_bytes = 0;
  int64_t argument_bytes = 0;
  int64_t output_bytes = 0;
  std::vector<Buffer> at_peak;
};

Buffer Described(const xla::BufferAllocation& allocation,
                 const xla::HloValue& value) {
  const auto placed = allocation.assigned_buffers().find(&value);
  const int64_t bytes =
      placed == allocation.assigned_buffers().end() ? 0 : placed->second.size;
  const xla::HloInstruction& made = *value.instruction();
  const std::string& name = made.metadata().op_name();
  return {bytes, name.empty() ? absl::StrCat("%", made.name()) : name,
          xla::ShapeUtil::HumanString(value.shape())};
}

// TensorFlow 2.20 has the allocations themselves in a list, 2.21 pointers.
[[maybe_unused]] const xla::BufferAllocation* Pointer(
    const xla::BufferAllocation& allocation) {
  return &allocation;
}
[[maybe_unused]] const xla::BufferAllocation* Pointer(
    const xla::BufferAllocation* allocation) {
  return allocation;
}

Plan Read(const xla::Executable& executable) {
  Plan plan;
  for (const auto& each : executable.GetAllocations()) {
    const xla::BufferAllocation* allocation = Pointer(each);
    if (allocation->is_constant() || allocation->is_thread_local()) continue;
    if (allocation->is_entry_computation_parameter()) {
      plan.argument_bytes += allocation->size();
    } else if (allocation->maybe_live_out()) {
      plan.output_bytes += allocation->size();
    } else {
      plan.temporary_bytes += allocation->size();
      for (const xla::HloValue* value : allocation->PeakMemoryLogicalBuffers())
        plan.at_peak.push_back(Described(*allocation, *value));
    }
  }
  return plan;
}

absl::StatusOr<Plan> Compiled(const std::string& program) {
  xla::HloModuleProto module;
  if (!module.ParseFromString(program))
    return absl::InvalidArgumentError("program is no HloModuleProto");
  const xla::XlaComputation computation(std::move(module));
  TF_ASSIGN_OR_RETURN(const xla::ProgramShape shape,
                      computation.GetProgramShape());
  std::vector<const xla::Shape*> layouts;
  for (const xla::Shape& parameter : shape.parameters())
    layouts.push_back(&parameter);
  TF_ASSIGN_OR_RETURN(xla::LocalClient* const client,
                      xla::ClientLibrary::GetOrCreateLocalClient());
  TF_ASSIGN_OR_RETURN(
      const std::vector<std::unique_ptr<xla::LocalExecutable>> executables,
      client->Compile(computation, layouts, xla::ExecutableBuildOptions()));
  return Read(*executables.front()->executable());
}

class MemoryPlan : public OpKernel {
 public:
  explicit MemoryPlan(OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(OpKernelContext* ctx) override {
    const auto plan = Compiled(ctx->input(0).scalar<tstring>()());
    OP_REQUIRES_OK(ctx, plan.status());
    const int64_t count = plan->at_peak.size();
    Tensor *totals, *bytes, *made_by, *shapes;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({3}), &totals));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, TensorShape({count}), &bytes));
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(2, TensorShape({count}), &made_by));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(3, TensorShape({count}), &shapes));
    totals->vec<int64_t>()(0) = plan->temporary_bytes;
    totals->vec<int64_t>()(1) = plan->argument_bytes;
    totals->vec<int64_t>()(2) = plan->output_bytes;
    for (int64_t i = 0; i < count; ++i) {
      bytes->vec<int64_t>()(i) = plan->at_peak[i].bytes;
      made_by->vec<tstring>()(i) = plan->at_peak[i].made_by;
      shapes->vec<tstring>()(i) = plan->at_peak[i].shape;
    }
  }
};

REGISTER_KERNEL_BUILDER(
    Name("Comptrain>MemoryPlan").Device(tensorflow::DEVICE_CPU), MemoryPlan);

}  // namespace
}  // namespace comptrain
