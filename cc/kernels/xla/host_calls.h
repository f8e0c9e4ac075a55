// The fixed-rate codec in steps that XLA compiles for a CPU: calls of
// cc/codec/fixed_rate, and of the layers that read its streams. XLA's CPU
// compiler takes about as long for one kernel of its own as for a layer, and of
// a stream it would make eleven.
#pragma once

#include <vector>

#include "cc/codec/fixed_rate/layout.h"
#include "cc/codec/stream/bound.h"
#include "cc/kernels/xla/hlo.h"

namespace comptrain::hlo {

struct HostEncoded {
  XlaOp stream, state;
};

struct HostEncoding {
  FixedRateCoding coding;
  BoundRule bound;
  bool group_statistics;
};

// x: at least one value, as of all the others.
HostEncoded EncodeOnHost(const HostEncoding& how, XlaOp x, XlaOp state);

// A tensor of that shape.
XlaOp DecodeOnHost(const FixedRateCoding& coding, XlaOp stream, XlaOp state,
                   const xla::Shape& shape);

// dy where values are not zero; in its place, where nothing else reads it.
XlaOp MaskGradientOnHost(const FixedRateCoding& coding, XlaOp stream, XlaOp dy);

// operands: stream, state, dy, gamma, mean, inv_std. Returns dx, in the place
// of dy where nothing else reads that, dgamma and dbeta.
std::vector<XlaOp> BatchNormGradientOnHost(const FixedRateCoding& coding,
                                           const std::vector<XlaOp>& operands);

}  // namespace comptrain::hlo
