// What the codecs on a GPU have in common.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/codec/common/gpu.h"
#include "cc/codec/common/status.h"
#include "cc/codec/stream/params.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

// What the first pass finds. In memory that the device sees.
struct GpuTotals {
  uint64_t words;  // of the payload
  uint64_t nonzero;
  uint64_t again;  // tiles or chunks that the second pass encodes again
};

// A stream in device memory, and what the host knows of it.
struct GpuEncoded {
  const void* stream_dev = nullptr;
  size_t bytes = 0;
  DType dtype = DType::kF32;
  int64_t n = 0, channels = 1;  // channels: the last dimension of the tensor
  int64_t width = 0;            // as the encoder was given it, for speed alone
  // Set to a value other than 0 where the stream is damaged; the caller zeroes
  // it.
  uint32_t* damaged_dev = nullptr;
  // The stream may be another codec's: it is left to that one's decoder then.
  bool any_codec = false;
};

// The same bytes as a codec's encoder on the CPU writes, from and to device
// memory.
//
// Every call is asynchronous on cuda_stream, allocates nothing, and returns an
// error of the CUDA runtime as Status::Invalid. A tensor is encoded in two
// passes, so that the caller can allocate exactly:
//
//   encoder.measure(params, x_dev, scratch_dev, totals, cuda_stream);
//   wait for cuda_stream; allocate encoder.stream_bytes(params, *totals);
//   encoder.write(params, x_dev, scratch_dev, *totals, out_dev, cuda_stream);
//
// The first pass of plane and rans encodes to scratch memory, the second copies
// from there, and encodes again only what takes more than 5 bits a value. That
// of zvc counts.
struct GpuEncoder {
  // Device bytes, aligned to 16: about 16% of an f32 tensor, 0.2% for zvc. The
  // second pass reads what the first one wrote there.
  size_t (*scratch_bytes)(const EncodeParams& params);
  size_t (*stream_bytes)(const EncodeParams& params, const GpuTotals& totals);
  // x_dev: params.n elements, aligned to an element, unchanged until the second
  // pass is done. totals: seen by the device; valid once cuda_stream got there.
  Status (*measure)(const EncodeParams& params, const void* x_dev,
                    void* scratch_dev, GpuTotals* totals,
                    CUstream_st* cuda_stream);
  // out_dev: stream_bytes(), aligned to 4; every byte of it is written.
  Status (*write)(const EncodeParams& params, const void* x_dev,
                  const void* scratch_dev, const GpuTotals& totals,
                  void* out_dev, CUstream_st* cuda_stream);
};

struct GpuDecoder {
  // out_dev: from.n elements. The stream must have been written with
  // from.channels. Where it is damaged nothing is read or written outside the
  // buffers, and tiles or chunks that do not add up come out as zeros.
  Status (*decode)(const GpuEncoded& from, void* out_dev,
                   CUstream_st* cuda_stream);
  // The gradient of ReLU, as on the CPU, for dy and dx of the stream's own
  // dtype; they may be the same.
  Status (*mask_gradient)(const GpuEncoded& from, const void* dy_dev,
                          void* dx_dev, CUstream_st* cuda_stream);
};

}  // namespace comptrain
