#include "cc/codec/stream/check_stream.h"

#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "cc/codec/stream/check_params.h"

namespace comptrain {
namespace {

std::string StreamOf(CodecId codec) {
  return std::string(CodecName(codec)) + " stream: ";
}

std::string Number(float v) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.9g", static_cast<double>(v));
  return buffer;
}

std::string InHeader(const char* field) {
  return std::string("header field ") + field;
}

}  // namespace

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
  }
  return "unknown";
}

Status BadField(CodecId codec, const std::string& field,
                const std::string& rule, const std::string& got) {
  return Status::Damaged(StreamOf(codec) + field + " must be " + rule +
                         ", got " + got +
                         "; pass the bytes exactly as they were encoded");
}

Status BadHeader(CodecId codec, const char* field, const std::string& rule,
                 uint64_t got) {
  return BadField(codec, InHeader(field), rule, std::to_string(got));
}

bool AllZero(const uint8_t* begin, const uint8_t* end) {
  uint8_t any = 0;
  for (; begin != end; ++begin) any |= *begin;
  return any == 0;
}

Status ReadHeader(CodecId codec, const uint8_t* stream, size_t stream_bytes,
                  int64_t n, StreamHeader* header) {
  if (stream == nullptr || stream_bytes < sizeof *header) {
    return Status::Damaged(
        StreamOf(codec) + "it must hold a 64-byte header, got " +
        std::to_string(stream_bytes) + " bytes; pass the whole stream");
  }
  std::memcpy(header, stream, sizeof *header);
  const StreamHeader& h = *header;
  const struct {
    const char* name;
    uint64_t wanted, got;
  } fields[] = {{"magic", kStreamMagic, h.magic},
                {"version", kStreamVersion, h.version},
                {"codec", static_cast<uint64_t>(codec), h.codec},
                {"total_bytes", stream_bytes, h.total_bytes}};
  for (const auto& f : fields) {
    if (f.got != f.wanted) {
      return BadHeader(codec, f.name, std::to_string(f.wanted), f.got);
    }
  }
  if (h.dtype > static_cast<uint8_t>(DType::kF16)) {
    return BadHeader(codec, "dtype", "0 (float32), 1 (bfloat16) or 2 (float16)",
                     h.dtype);
  }
  if (!AllZero(h.padding, h.padding + sizeof h.padding)) {
    return BadField(codec, InHeader("padding"), "zero", "other bytes");
  }
  if (n < 0 || h.n != static_cast<uint64_t>(n)) {
    return BadHeader(codec, "n",
                     "the number of elements asked for, " + std::to_string(n),
                     h.n);
  }
  if (h.channels == 0 || h.n % h.channels != 0) {
    return BadHeader(codec, "channels",
                     "a positive divisor of n = " + std::to_string(h.n),
                     h.channels);
  }
  return {};
}

Status CheckQuantizer(CodecId codec, const StreamHeader& h) {
  const bool dither = (h.flags & kDither) != 0;
  if ((h.flags & ~(kMidRise | kDither | kFlat | kExponents | kCentres)) != 0 ||
      (dither && (h.flags & kMidRise)) || (!dither && (h.flags & kCentres))) {
    return BadHeader(codec, "flags",
                     "1 (mid-rise), 2 (dither) or 0, plus 4 (flat), 8 "
                     "(exponents) and, with dither, 16 (centres)",
                     h.flags);
  }
  if (!dither && h.seed != 0) {
    return BadHeader(codec, "seed", "0 without dither", h.seed);
  }
  if (!(std::isnormal(h.step) && h.step > 0 && 0.5f * h.step >= FLT_MIN)) {
    return BadField(codec, InHeader("step"),
                    "a positive number whose half is normal", Number(h.step));
  }
  const float inv = 1.0f / h.step;
  if (h.inv != inv || inv < FLT_MIN) {
    return BadField(codec, InHeader("inv"),
                    "1 / step = " + Number(inv) + " and normal", Number(h.inv));
  }
  return {};
}

Status CheckSections(CodecId codec, const StreamHeader& h, uint64_t directory,
                     uint64_t table, uint64_t payload) {
  if (h.directory_offset != directory) {
    return BadHeader(codec, "directory_offset", std::to_string(directory),
                     h.directory_offset);
  }
  if (h.table_offset != table) {
    return BadHeader(codec, "table_offset", std::to_string(table),
                     h.table_offset);
  }
  if (h.payload_offset != payload ||
      payload + ScaleBytes(h.flags, h.channels) > h.total_bytes ||
      (h.total_bytes - payload) % 4 != 0) {
    return BadHeader(
        codec, "payload_offset",
        std::to_string(payload) + ", within the stream, whole words after",
        h.payload_offset);
  }
  return {};
}

Status CheckDType(CodecId codec, DType stored, DType asked) {
  if (stored == asked) return {};
  return Status::Damaged(StreamOf(codec) +
                         "header field dtype must be the type asked for, " +
                         DTypeName(asked) + ", got " + DTypeName(stored) +
                         "; decode with the type it was encoded from");
}

Status CheckHasMask(CodecId codec, Coding coding) {
  if (coding != Coding::kPlain) return {};
  return Status::Invalid(
      StreamOf(codec) +
      "header field flags must have mid-rise (1) or dither (2) for a mask, got "
      "neither: small values share the code of zero; encode with mid_rise = "
      "true");
}

Status CheckEmptyPayload(CodecId codec, uint64_t payload_words) {
  if (payload_words == 0) return {};
  return Status::Damaged(StreamOf(codec) +
                         "an empty tensor must have no payload, got " +
                         std::to_string(payload_words) + " words");
}

Status FirstFailure::ToStatus(CodecId codec, const char* item,
                              const char* rule) const {
  const int64_t number = item_.load();
  if (number == kNone) return {};
  return Status::Damaged(StreamOf(codec) + "the payload of " + item + " " +
                         std::to_string(number) + " must " + rule +
                         "; the stream is damaged: encode it again");
}

}  // namespace comptrain
