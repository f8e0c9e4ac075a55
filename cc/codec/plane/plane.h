// plane: error-bounded quantisation of activations to small
// integers, stored as bit planes of 32-channel x 32-pixel tiles. Near memory
// speed, deterministic, byte-identical on every instruction set and for any
// number of threads. docs/codec-format.md is the specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/codec/common/isa.h"
#include "cc/codec/common/parallel.h"
#include "cc/codec/common/status.h"
#include "cc/codec/common/tensor.h"
#include "cc/codec/stream/encoder.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

std::unique_ptr<StreamEncoder> MakePlaneEncoder(const EncodeParams& params,
                                                Isa isa = Isa::kBest);

size_t PlaneMaxBytes(int64_t n, int64_t channels, DType dtype);

// Decodes into out (n elements of dtype, host). Every header field, directory
// entry and offset is checked against the stream's bytes: whatever these are,
// no access is outside the two buffers. dtype and n must match the header.
Status PlaneDecode(const StreamIn& stream, void* out,
                   const ParallelFor& parallel, Isa isa = Isa::kBest);

// dx[i] = code[i] != 0 ? dy[i] : 0, for a mid-rise stream: the gradient of
// ReLU from the stream of its output, without decoding values. dy, dx: n
// elements of dtype (may be the stream's or another), may be the same buffer.
Status PlaneMaskGradient(const StreamIn& stream, const void* dy, void* dx,
                         const ParallelFor& parallel, Isa isa = Isa::kBest);

}  // namespace comptrain
