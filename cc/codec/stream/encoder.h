// The encoder of any codec.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/status.h"
#include "cc/codec/stream/params.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

// Encodes in two steps, so that the caller allocates the stream exactly:
//
//   auto encoder = MakePlaneEncoder(params);
//   Status s = encoder->Encode(x, scratch, scratch_bytes, parallel);
//   allocate encoder->total_bytes();
//   s = encoder->Write(stream, parallel);
//
// scratch may be of any size: tiles and chunks that do not fit are encoded a
// second time, straight into the stream, by Write. All memory is the host's.
class StreamEncoder {
 public:
  virtual ~StreamEncoder() = default;

  // How much scratch memory is worth giving to Encode: typical activations are
  // then encoded once.
  virtual size_t scratch_bytes() const { return 0; }
  // x: n elements, owned by the caller, alive and unchanged until Write
  // returns.
  Status Encode(const void* x, uint8_t* scratch, size_t scratch_bytes,
                const ParallelFor& parallel);
  size_t total_bytes() const { return total_bytes_; }  // valid after Encode
  // Elements that are not zero; valid after Encode.
  int64_t nonzero() const { return nonzero_; }
  // stream: total_bytes() bytes; every byte of it is written.
  Status Write(uint8_t* stream, const ParallelFor& parallel);

 protected:
  StreamEncoder(CodecId codec, const EncodeParams& params)
      : params_(params), codec_(codec) {}

  // Returns the words of the payload, and adds to nonzero_.
  virtual uint64_t EncodeAll(uint8_t* scratch, size_t scratch_bytes,
                             const ParallelFor& parallel) = 0;
  virtual size_t payload_offset() const = 0;
  virtual void WriteAll(uint8_t* stream, const ParallelFor& parallel) = 0;

  // What the stream ends in.
  size_t scale_bytes() const;

  // What keeps the tensor from being encoded.
  Status checked_;
  const EncodeParams params_;
  const uint8_t* x_ = nullptr;
  int64_t nonzero_ = 0;

 private:
  const CodecId codec_;
  size_t total_bytes_ = 0;
  bool encoded_ = false;
};

}  // namespace comptrain
