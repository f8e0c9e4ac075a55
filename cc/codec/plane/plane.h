// plane: error-bounded quantisation of activations to small
// integers, stored as bit planes of 32-channel x 32-pixel tiles. Near memory
// speed, deterministic, byte-identical on every instruction set and for any
// number of threads. docs/codec-format.md is the specification.
#ifndef TF_COMPTRAIN_CC_CODEC_PLANE_PLANE_H_
#define TF_COMPTRAIN_CC_CODEC_PLANE_PLANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/codec/common/isa.h"
#include "cc/codec/common/parallel.h"
#include "cc/codec/common/status.h"
#include "cc/codec/stream/params.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

// Encodes in two steps, so that the caller allocates the stream exactly:
//
//   PlaneEncoder enc(params, isa);
//   Status s = enc.Encode(x, scratch, scratch_bytes, parallel);  // host memory
//   allocate enc.total_bytes();
//   enc.Write(stream, parallel);
//
// scratch may be of any size: tiles that do not fit are encoded a second time,
// straight into the stream, by Write (x must then still be alive).
// PlaneScratchBytes() is enough for typical activations to be encoded once.
class PlaneEncoder {
 public:
  explicit PlaneEncoder(const EncodeParams& params, Isa isa = Isa::kBest);
  ~PlaneEncoder();

  // x: n elements, host, owned by the caller, alive until Write returns.
  Status Encode(const void* x, uint8_t* scratch, size_t scratch_bytes,
                const ParallelFor& parallel);
  size_t total_bytes() const;  // valid after Encode
  const EncodeStats& stats() const;
  // stream: total_bytes() bytes, host; every byte of it is written.
  Status Write(uint8_t* stream, const ParallelFor& parallel);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

size_t PlaneScratchBytes(int64_t n, int64_t channels, DType dtype);
size_t PlaneMaxBytes(int64_t n, int64_t channels, DType dtype);

// Decodes into out (n elements of dtype, host). Every header field, directory
// entry and offset is checked against stream_bytes: whatever the bytes, no
// access is outside the two buffers. dtype and n must match the header.
Status PlaneDecode(const uint8_t* stream, size_t stream_bytes, DType dtype,
                   int64_t n, void* out, const ParallelFor& parallel,
                   Isa isa = Isa::kBest);

// dx[i] = code[i] != 0 ? dy[i] : 0, for a mid-rise stream: the gradient of
// ReLU from the stream of its output, without decoding values. dy, dx: n
// elements of dtype (may be the stream's or another), may be the same buffer.
Status PlaneMaskGradient(const uint8_t* stream, size_t stream_bytes,
                         DType dtype, int64_t n, const void* dy, void* dx,
                         const ParallelFor& parallel, Isa isa = Isa::kBest);

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_PLANE_PLANE_H_
