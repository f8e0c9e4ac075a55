#include "cc/codec/stream/check_params.h"

#include <cstdio>
#include <string>

#include "cc/codec/stream/quantizer.h"

namespace comptrain {
namespace {

// "plane: <argument> must <rule>, got <value>; <remedy>"
Status Invalid(CodecId codec, const std::string& rule, const std::string& got,
               const std::string& remedy) {
  return Status::Invalid(std::string(CodecName(codec)) + ": " + rule +
                         ", got " + got + "; " + remedy);
}

}  // namespace

const char* CodecName(CodecId codec) {
  switch (codec) {
    case CodecId::kRans:
      return "rans";
    case CodecId::kZvc:
      return "zvc";
    case CodecId::kPlane:
      break;
  }
  return "plane";
}

Status CheckIsa(CodecId codec, Isa isa) {
  if (IsaAvailable(isa)) return {};
  return Invalid(codec, "isa must be an instruction set of this machine",
                 std::to_string(static_cast<int>(isa)), "use Isa::kBest");
}

Status CheckTensor(CodecId codec, int64_t n, int64_t channels, DType dtype,
                   Isa isa) {
  if (n < 0) {
    return Invalid(codec, "n must be at least 0", std::to_string(n),
                   "pass the number of elements");
  }
  if (channels <= 0 || channels > UINT32_MAX || n % channels != 0) {
    return Invalid(codec,
                   "channels must be a positive 32-bit divisor of n = " +
                       std::to_string(n),
                   std::to_string(channels),
                   "pass the size of the last dimension");
  }
  if (static_cast<uint8_t>(dtype) > static_cast<uint8_t>(DType::kF16)) {
    return Invalid(codec, "dtype must be float32, bfloat16 or float16",
                   std::to_string(static_cast<int>(dtype)),
                   "convert the tensor");
  }
  return CheckIsa(codec, isa);
}

Status CheckParams(CodecId codec, const EncodeParams& params, Isa isa) {
  const Status s =
      CheckTensor(codec, params.n, params.channels, params.dtype, isa);
  if (!s.ok() || BoundSupported(CodingOf(params), params.eb)) {
    return s;
  }
  char got[16];
  std::snprintf(got, sizeof got, "%g", params.eb);
  return Invalid(codec,
                 params.dither ? "eb must lie between about 7.7e-34 (with "
                                 "dither) and 4.2e37"
                               : "eb must lie between about 1.2e-38 and 4.2e37",
                 got,
                 "set a positive finite error bound, or keep the tensor "
                 "uncompressed");
}

Status CheckSize(CodecId codec, int64_t n, int64_t chunks,
                 uint64_t payload_offset) {
  if (chunks <= UINT32_MAX && payload_offset <= UINT32_MAX) return {};
  return Invalid(codec, "n must fit into one stream", std::to_string(n),
                 "split the tensor");
}

Status CheckWords(CodecId codec, uint64_t words) {
  if (words <= UINT32_MAX) return {};
  return Invalid(codec, "a stream holds at most 2^32 - 1 words",
                 std::to_string(words), "split the tensor");
}

Status OutOfMemory(CodecId codec, const char* doing, const std::exception& e) {
  return Status::Invalid(std::string(CodecName(codec)) + ": " + doing +
                         " failed, " + e.what() +
                         "; free host memory or lower the batch size");
}

}  // namespace comptrain
