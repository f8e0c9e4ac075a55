// Codec A, "plane tile": error-bounded quantisation of activations to small
// integers, stored as bit planes of 32-channel x 32-pixel tiles. Near memory
// speed, deterministic, byte-identical on every instruction set and for any
// number of threads. docs/codec-format.md is the specification.
#ifndef TF_COMPTRAIN_CC_CODEC_PLANE_H_
#define TF_COMPTRAIN_CC_CODEC_PLANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/codec/isa.h"
#include "cc/codec/parallel.h"
#include "cc/codec/status.h"
#include "cc/codec/stream.h"

namespace comptrain {

struct PlaneParams {
  DType dtype = DType::kF32;
  int64_t n = 0;         // elements
  int64_t channels = 1;  // size of the last dimension; divides n
  float eb = 0;          // absolute error bound, a positive normal number
  bool mid_rise = false;  // the stream carries the mask x != 0
  // Unbiased, the error independent of the data; carries the mask in any case.
  bool dither = false;
};

// Sums over the finite elements, gathered while encoding. Deterministic for
// any number of threads (accumulated per tile range in double, in order).
struct PlaneStats {
  int64_t nonzero = 0;
  double sum = 0;
  double sum_sq = 0;
};

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
  explicit PlaneEncoder(const PlaneParams& params, Isa isa = Isa::kBest);
  ~PlaneEncoder();

  // x: n elements, host, owned by the caller, alive until Write returns.
  Status Encode(const void* x, uint8_t* scratch, size_t scratch_bytes,
                const ParallelFor& parallel);
  size_t total_bytes() const;  // valid after Encode
  const PlaneStats& stats() const;
  // stream: total_bytes() bytes, host; every byte of it is written.
  Status Write(uint8_t* stream, const ParallelFor& parallel);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

size_t PlaneScratchBytes(int64_t n, int64_t channels, DType dtype);
size_t PlaneMaxBytes(int64_t n, int64_t channels, DType dtype);

// Estimates the standard deviation (zeros included) of x from a fixed,
// data-independent sample of whole cache lines (every element when n is
// small). Non-finite elements are left out. Deterministic.
double SampleSigma(const void* x, DType dtype, int64_t n);

// Largest less smallest finite value of x; 0 when there is none.
double ValueRange(const void* x, DType dtype, int64_t n,
                  const ParallelFor& parallel);

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

#endif  // TF_COMPTRAIN_CC_CODEC_PLANE_H_
