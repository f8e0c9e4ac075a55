// zvc: lossless zero-value compression. Each chunk of 2,048
// elements is a bit mask of those whose bits are not all zero, and these; so
// -0, NaN and subnormals come back bit for bit. Rhu et al., Compressing DMA
// Engine, HPCA 2018, is where it comes from; it gains nothing on dense tensors.
// Byte-identical on every instruction set and for any number of threads.
// docs/codec-format.md is the specification.
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

// Encode only counts, and needs no scratch memory: reading x a second time is
// faster than writing the values and copying them.
std::unique_ptr<StreamEncoder> MakeZvcEncoder(const EncodeParams& params,
                                              Isa isa = Isa::kBest);

size_t ZvcMaxBytes(int64_t n, DType dtype);

// Decodes into out (n elements of dtype, host). Every header field, directory
// entry, offset and mask is checked against stream_bytes: whatever the bytes,
// no access is outside the two buffers. dtype and n must match the header.
Status ZvcDecode(const StreamIn& stream, void* out, const ParallelFor& parallel,
                 Isa isa = Isa::kBest);

// dx[i] = x[i] is not zero ? dy[i] : 0, the gradient of ReLU from the stream of
// its output x. Zero as in plane: -0 and subnormals of f32 and bf16 too. dy,
// dx: n elements of dtype (may be the stream's or another), may be one buffer.
Status ZvcMaskGradient(const StreamIn& stream, const void* dy, void* dx,
                       const ParallelFor& parallel, Isa isa = Isa::kBest);

}  // namespace comptrain
