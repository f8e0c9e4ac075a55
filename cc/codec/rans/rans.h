// rans: the quantisation of plane, predicted from the pixels
// before and above, and entropy coded by 32 interleaved rANS coders with
// contexts. The highest ratio; deterministic, byte-identical on every
// instruction set and for any number of threads. docs/codec-format.md is the
// specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/isa.h"
#include "cc/codec/common/status.h"
#include "cc/codec/common/tensor.h"
#include "cc/codec/stream/encoder.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

std::unique_ptr<StreamEncoder> MakeRansEncoder(const EncodeParams& params,
                                               Isa isa = Isa::kBest);

size_t RansMaxBytes(int64_t n, int64_t channels, DType dtype);

// As PlaneDecode: whatever the bytes, no access is outside the two buffers.
Status RansDecode(const StreamIn& stream, void* out,
                  const ParallelFor& parallel, Isa isa = Isa::kBest);

// As PlaneMaskGradient: dx[i] = code[i] != 0 ? dy[i] : 0, mid-rise streams.
Status RansMaskGradient(const StreamIn& stream, const void* dy, void* dx,
                        const ParallelFor& parallel, Isa isa = Isa::kBest);

}  // namespace comptrain
