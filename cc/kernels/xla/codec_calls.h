// The fixed-rate codec in steps that XLA compiles: calls of
// cc/codec/fixed_rate, and of the layers that read its streams. As operations
// of XLA's own a stream took eleven kernels of a CPU's step and seven of a
// GPU's, and its compiler took longer for a few of them than for a layer.
#pragma once

#include <vector>

#include "cc/codec/fixed_rate/layout.h"
#include "cc/codec/stream/bound.h"
#include "cc/kernels/xla/lowering.h"

namespace comptrain::hlo {

// The coding of a stream in a compiled step, as ops are told it.
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
    if (s.ok() && ctx->HasAttr("row_scales")) {
      s = ctx->GetAttr("row_scales", &row_scales);
    }
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

struct Encoded {
  XlaOp stream, state;
};

struct Encoding {
  BoundRule bound;
  bool group_statistics;
};

// How one coding is called in the steps of one of XLA's compilers.
class CodecCalls {
 public:
  CodecCalls(bool on_cpu, const FixedRateCoding& coding)
      : on_cpu_(on_cpu), coding_(coding) {}

  // x: at least one value, as of all the others.
  Encoded Encode(const Encoding& how, XlaOp x, XlaOp state) const;

  // A tensor of that shape, no earlier than gate, the incoming gradient, is
  // there.
  XlaOp Decode(XlaOp stream, XlaOp state, XlaOp gate,
               const xla::Shape& shape) const;

  // The sum of dy, one or two, where values are not zero; in the place of the
  // first, where nothing else reads it.
  XlaOp MaskGradient(XlaOp stream, std::vector<XlaOp> dy) const;

  // operands: stream, state, dy, gamma, mean, inv_std. Returns dx, on a CPU in
  // the place of dy where nothing else reads that, dgamma and dbeta.
  std::vector<XlaOp> BatchNormGradient(std::vector<XlaOp> operands) const;

 private:
  // The stream, which on a CPU XLA may not move: a GPU's call waits for all of
  // its operands.
  XlaOp After(XlaOp* gate, XlaOp stream) const;

  bool on_cpu_;
  FixedRateCoding coding_;
};

}  // namespace comptrain::hlo
