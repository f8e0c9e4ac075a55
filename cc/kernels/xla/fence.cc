#include "cc/kernels/xla/fence.h"

#include <utility>

#include "xla/service/custom_call_status.h"
#include "xla/service/custom_call_target_registry.h"

namespace comptrain::hlo {
namespace {

constexpr char kFenceTarget[] = "comptrain_fence";

// Fence's custom call: its result is a token, which has no bytes.
void FenceOnHost(void* /*out*/, const void** /*in*/, const char* /*opaque*/,
                 size_t /*opaque_bytes*/, XlaCustomCallStatus* /*status*/) {}

const bool registered = [] {
  xla::CustomCallTargetRegistry::Global()->Register(
      kFenceTarget, reinterpret_cast<void*>(FenceOnHost), "Host");
  return true;
}();

// A token that is there when the operands are.
XlaOp TokenAfter(const std::vector<XlaOp>& operands) {
  return xla::CustomCall(
      operands[0].builder(), kFenceTarget, operands,
      xla::ShapeUtil::MakeTokenShape(), /*opaque=*/"",
      /*has_side_effect=*/false, /*output_operand_aliasing=*/{},
      /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_STATUS_RETURNING_UNIFIED);
}

}  // namespace

std::vector<XlaOp> Fence(bool on_cpu, const std::vector<XlaOp>& operands) {
  xla::XlaBuilder* b = operands[0].builder();
  std::vector<XlaOp> results;
  if (on_cpu) {
    const XlaOp token = TokenAfter(operands);
    for (const XlaOp& operand : operands) {
      results.push_back(xla::internal::XlaBuilderFriend::BuildAddDependency(
          b, operand, token, b->GetShape(operand).value()));
    }
    return results;
  }
  const XlaOp barrier = xla::OptimizationBarrier(xla::Tuple(b, operands));
  for (size_t i = 0; i < operands.size(); ++i) {
    results.push_back(xla::GetTupleElement(barrier, i));
  }
  return results;
}

std::vector<XlaOp> Gated(bool on_cpu, std::vector<XlaOp> parts, XlaOp gate) {
  if (on_cpu) return GatedWith(on_cpu, std::move(parts), &gate);
  xla::XlaBuilder* b = gate.builder();
  const xla::Shape shape = b->GetShape(gate).value();
  if (xla::ShapeUtil::ElementsIn(shape) == 0 ||
      !xla::primitive_util::IsFloatingPointType(shape.element_type())) {
    return parts;
  }
  // All parts stand in a barrier with the gate, and only one must read it: XLA
  // would make a kernel of what several do.
  parts = GatedWith(on_cpu, std::move(parts), &gate);
  const XlaOp never = xla::Gt(
      FirstOf(gate), xla::MaxValue(b, shape.element_type()));  // infinity
  const xla::Shape of = b->GetShape(parts.back()).value();
  parts.back() =
      xla::Or(parts.back(),
              xla::Broadcast(xla::ConvertElementType(never, of.element_type()),
                             of.dimensions()));
  return parts;
}

std::vector<XlaOp> GatedWith(bool on_cpu, std::vector<XlaOp> parts,
                             XlaOp* gate) {
  parts.push_back(*gate);
  parts = Fence(on_cpu, parts);
  *gate = parts.back();
  parts.pop_back();
  return parts;
}

}  // namespace comptrain::hlo
