// The fixed-rate codec in steps that XLA compiles: calls of
// cc/codec/fixed_rate, and of the layers that read its streams. As operations
// of XLA's own a stream took eleven kernels of a CPU's step and seven of a
// GPU's, and its compiler took longer for a few of them than for a layer.
#pragma once

#include <vector>

#include "cc/codec/fixed_rate/layout.h"
#include "cc/codec/stream/bound.h"
#include "cc/kernels/xla/hlo.h"

namespace comptrain::hlo {

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
