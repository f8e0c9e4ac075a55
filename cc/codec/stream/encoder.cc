#include "cc/codec/stream/encoder.h"

#include <exception>
#include <string>

#include "cc/codec/stream/check_params.h"
#include "cc/codec/stream/scales.h"

namespace comptrain {

Status StreamEncoder::Encode(const void* x, uint8_t* scratch,
                             size_t scratch_bytes,
                             const ParallelFor& parallel) {
  encoded_ = false;
  if (!checked_.ok()) return checked_;
  if (x == nullptr && params_.n > 0) {
    return Status::Invalid(std::string(CodecName(codec_)) +
                           ": x must not be null when n > 0");
  }
  x_ = static_cast<const uint8_t*>(x);
  nonzero_ = 0;
  uint64_t words;
  try {
    words = EncodeAll(scratch, scratch_bytes, parallel);
  } catch (const std::exception& e) {
    return OutOfMemory(codec_, "encoding", e);
  }
  const Status s = CheckWords(codec_, words);
  if (!s.ok()) return s;
  total_bytes_ = payload_offset() + 4 * words + scale_bytes();
  encoded_ = true;
  return {};
}

size_t StreamEncoder::scale_bytes() const {
  return ScaleBytes(FlagsOf(Coding::kPlain, false, params_.scales),
                    static_cast<uint64_t>(params_.channels));
}

Status StreamEncoder::Write(uint8_t* stream, const ParallelFor& parallel) {
  if (!encoded_) {
    return Status::Invalid(std::string(CodecName(codec_)) +
                           ": Write needs an Encode that succeeded");
  }
  if (stream == nullptr) {
    return Status::Invalid(std::string(CodecName(codec_)) +
                           ": stream must not be null");
  }
  try {
    PutScales(params_.scales, params_.channels,
              stream + total_bytes_ - scale_bytes());
    WriteAll(stream, parallel);
  } catch (const std::exception& e) {
    return OutOfMemory(codec_, "encoding", e);
  }
  return {};
}

}  // namespace comptrain
