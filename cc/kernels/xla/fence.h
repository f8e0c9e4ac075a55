// The order in which XLA runs what reads and writes streams.
#pragma once

#include <vector>

#include "cc/kernels/xla/hlo.h"

namespace comptrain::hlo {

// The operands again, each no earlier than all of them: XLA neither looks
// through nor moves what reads them ahead.
//
// XLA's GPU compiler keeps to an optimization barrier. Its CPU compiler drops
// barriers before it fuses operations, and would pack and unpack in one of
// them, with the whole tensor alive until then. There each operand gets a
// dependency on a token that a custom call makes of all: it is the same value
// in the same memory, which others may read too.
std::vector<XlaOp> Fence(bool on_cpu, const std::vector<XlaOp>& operands);

// The parts of a stream, to be read no earlier than gate, the incoming
// gradient, is there. On the GPU one value of the gradient takes part, without
// effect, in the bytes: an operand of a barrier that nothing reads is dropped.
std::vector<XlaOp> Gated(bool on_cpu, std::vector<XlaOp> parts, XlaOp gate);

// The same for a reader of gate too, which is replaced by what it must read:
// that takes no kernel of its own.
std::vector<XlaOp> GatedWith(bool on_cpu, std::vector<XlaOp> parts,
                             XlaOp* gate);

}  // namespace comptrain::hlo
