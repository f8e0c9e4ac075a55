// GradientStats.
#include <vector>

#include "cc/kernels/statistics/ops.h"
#include "cc/kernels/xla/lowering.h"
#include "cc/kernels/xla/reduction.h"

namespace comptrain::hlo {
namespace {

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
    const std::vector<XlaOp> reduced =
        Reduced(on_cpu_, Groups(dims, on_cpu_ ? 8 : 1),
                {{Squared(values), kSum},
                 {xla::Abs(values), kSum},
                 {F32(xla::Not(xla::IsFinite(dy))), kSum}});
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
