// The coding of a stream in a compiled step, as ops are told it.
#pragma once

#include <vector>

#include "cc/codec/fixed_rate/layout.h"
#include "cc/kernels/xla/lowering.h"

namespace comptrain::hlo {

class FixedRate : public FixedRateCoding {
 public:
  // with_mask: of an op that reads no other streams.
  absl::Status Read(OpKernelConstruction* ctx, bool with_mask = false) {
    absl::Status s = ctx->GetAttr("bits", &bits);
    if (s.ok() && (bits < 2 || bits > 8)) {
      s = absl::InvalidArgumentError(
          absl::StrCat("bits must be from 2 to 8, got ", bits));
    }
    mid_rise = with_mask;
    if (s.ok() && !with_mask) s = ctx->GetAttr("mid_rise", &mid_rise);
    return s;
  }

  int64_t StreamBytes(std::vector<int64_t> dims) const {
    if (dims.empty()) dims.push_back(1);
    return FixedRateCoding::StreamBytes(dims);
  }
};

// The first input, the stream of a tensor of shape dims. The builder of a
// computation would end the process when asked for the shape of what it has
// refused.
inline absl::Status CheckStream(XlaOpKernelContext* ctx, const FixedRate& rate,
                                absl::Span<const int64_t> dims) {
  return CheckShape(
      "stream", ShapeOf(ctx, 0),
      TensorShape({rate.StreamBytes({dims.begin(), dims.end()})}),
      absl::StrCat("that of ", rate.bits,
                   " bits a value for a tensor of shape ",
                   TensorShape(dims).DebugString(), " under XLA"));
}

}  // namespace comptrain::hlo
