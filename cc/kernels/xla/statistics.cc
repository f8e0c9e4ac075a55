// GradientStats.
#include <numeric>
#include <vector>

#include "cc/kernels/statistics/ops.h"
#include "cc/kernels/xla/lowering.h"

namespace comptrain::hlo {
namespace {

// Of all elements of operands, f32 and of one shape. A sum counts exactly below
// 2^24. On a GPU they are found in one pass; a CPU's compiler has vector code
// for one operand only, and adds up eight members of a group first.
std::vector<XlaOp> Sums(bool on_cpu, const std::vector<XlaOp>& operands) {
  xla::XlaBuilder* b = operands[0].builder();
  const int n = operands.size();
  std::vector<XlaOp> sums;
  if (on_cpu) {
    for (const XlaOp& operand : operands) {
      XlaOp folded;
      for (const XlaOp& part : Groups(Dims(operand), 8).Members(operand)) {
        folded = folded.valid() ? folded + part : part;
      }
      sums.push_back(
          xla::ReduceAll(folded, xla::Zero(b, xla::F32),
                         xla::CreateScalarAddComputation(xla::F32, b)));
    }
    return sums;
  }
  const auto combine = b->CreateSubBuilder("sums");
  const xla::Shape scalar = xla::ShapeUtil::MakeShape(xla::F32, {});
  std::vector<XlaOp> parameters, added;
  for (int i = 0; i < 2 * n; ++i) {
    parameters.push_back(
        xla::Parameter(combine.get(), i, scalar, absl::StrCat("p", i)));
  }
  for (int i = 0; i < n; ++i) {
    added.push_back(parameters[i] + parameters[n + i]);
  }
  xla::Tuple(combine.get(), added);
  std::vector<int64_t> all(Dims(operands[0]).size());
  std::iota(all.begin(), all.end(), 0);
  const XlaOp reduced =
      xla::Reduce(b, operands, std::vector<XlaOp>(n, xla::Zero(b, xla::F32)),
                  combine->Build().value(), all);
  for (int i = 0; i < n; ++i) sums.push_back(xla::GetTupleElement(reduced, i));
  return sums;
}

class GradientStatsXla : public Lowering {
 public:
  using Lowering::Lowering;

  void Compile(XlaOpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckStatsInputs(ShapeOf(ctx, 1), ShapeOf(ctx, 2)));
    const XlaOp dy = F32(ctx->Input(0)), previous = ctx->Input(2);
    const std::vector<int64_t> dims = Dims(dy);
    if (Size(dy) == 0) {
      ctx->SetOutput(0, previous);
      return;
    }
    const XlaOp values = FiniteOrZero(dy);
    const std::vector<XlaOp> reduced = Sums(
        on_cpu_,
        {Squared(values), xla::Abs(values), F32(xla::Not(xla::IsFinite(dy)))});
    const XlaOp good =
        xla::Max(Scalar(dy, Size(dy)) - reduced[2], Scalar(dy, 1));
    const XlaOp stats[] = {
        reduced[0] / Scalar(dy, dims.empty() ? 1 : dims.back()),
        reduced[1] / good, reduced[2]};
    std::vector<XlaOp> fields;
    for (const XlaOp& s : stats) fields.push_back(xla::Reshape(s, {1}));
    ctx->SetOutput(
        0, xla::Select(xla::Broadcast(ctx->Input(1), {3}),
                       xla::ConcatInDim(dy.builder(), fields, 0), previous));
  }
};

COMPTRAIN_REGISTER_XLA("GradientStats", GradientStatsXla)

}  // namespace
}  // namespace comptrain::hlo
