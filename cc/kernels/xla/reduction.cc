#include "cc/kernels/xla/reduction.h"

#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace comptrain::hlo {

std::vector<XlaOp> Reduced(
    bool on_cpu, const Groups& fold,
    const std::vector<std::pair<XlaOp, Reduction>>& operands) {
  const int n = operands.size();
  std::vector<XlaOp> reduced;
  if (on_cpu && n > 1) {
    for (const auto& operand : operands) {
      reduced.push_back(Reduced(on_cpu, fold, {operand})[0]);
    }
    return reduced;
  }
  xla::XlaBuilder* b = operands[0].first.builder();
  const std::unique_ptr<xla::XlaBuilder> combine =
      b->CreateSubBuilder("reduced");
  const xla::Shape scalar = xla::ShapeUtil::MakeShape(xla::F32, {});
  std::vector<XlaOp> before, now, combined, folded;
  for (int i = 0; i < 2 * n; ++i) {
    (i < n ? before : now)
        .push_back(
            xla::Parameter(combine.get(), i, scalar, absl::StrCat("p", i)));
  }
  for (int i = 0; i < n; ++i) {
    auto two = [&](XlaOp x, XlaOp y) {
      return operands[i].second == kSum ? x + y : xla::Max(x, y);
    };
    combined.push_back(two(before[i], now[i]));
    folded.push_back(fold.Folded(operands[i].first, two));
  }
  if (n > 1) xla::Tuple(combine.get(), combined);
  std::vector<int64_t> all(Dims(folded[0]).size());
  std::iota(all.begin(), all.end(), 0);
  const XlaOp results =
      xla::Reduce(b, folded, std::vector<XlaOp>(n, xla::Zero(b, xla::F32)),
                  combine->Build().value(), all);
  if (n == 1) return {results};
  for (int i = 0; i < n; ++i) {
    reduced.push_back(xla::GetTupleElement(results, i));
  }
  return reduced;
}

}  // namespace comptrain::hlo
