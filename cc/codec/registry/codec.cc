#include "cc/codec/registry/codec.h"

#include "cc/codec/plane/plane.h"
#include "cc/codec/rans/rans.h"
#include "cc/codec/stream/check_params.h"
#include "cc/codec/zvc/zvc.h"

namespace comptrain {
namespace {

struct Codec {
  CodecId id;
  std::unique_ptr<StreamEncoder> (*make)(const EncodeParams&, Isa);
  decltype(&PlaneDecode) decode;
  decltype(&PlaneMaskGradient) mask;
};

constexpr Codec kCodecs[] = {
    {CodecId::kPlane, MakePlaneEncoder, PlaneDecode, PlaneMaskGradient},
    {CodecId::kRans, MakeRansEncoder, RansDecode, RansMaskGradient},
    {CodecId::kZvc, MakeZvcEncoder, ZvcDecode, ZvcMaskGradient},
};

// The codec a stream names. A stream too short to, or one that names none, is
// left to plane, which says what is wrong with its header.
const Codec& CodecOf(const uint8_t* stream, size_t stream_bytes) {
  constexpr size_t kField = offsetof(StreamHeader, codec);
  if (stream != nullptr && stream_bytes > kField) {
    for (const Codec& c : kCodecs) {
      if (static_cast<uint8_t>(c.id) == stream[kField]) return c;
    }
  }
  return kCodecs[0];
}

}  // namespace

std::unique_ptr<StreamEncoder> MakeEncoder(CodecId id,
                                           const EncodeParams& params,
                                           Isa isa) {
  for (const Codec& c : kCodecs) {
    if (c.id == id) return c.make(params, isa);
  }
  return nullptr;
}

bool CodecFromName(const std::string& name, CodecId* id) {
  for (const Codec& c : kCodecs) {
    if (name != CodecName(c.id)) continue;
    *id = c.id;
    return true;
  }
  return false;
}

CodecId StreamCodec(const uint8_t* stream, size_t stream_bytes) {
  return CodecOf(stream, stream_bytes).id;
}

Status DecodeStream(const StreamIn& stream, void* out,
                    const ParallelFor& parallel, Isa isa) {
  return CodecOf(stream.data, stream.bytes).decode(stream, out, parallel, isa);
}

Status StreamMaskGradient(const StreamIn& stream, const void* dy, void* dx,
                          const ParallelFor& parallel, Isa isa) {
  return CodecOf(stream.data, stream.bytes).mask(stream, dy, dx, parallel, isa);
}

}  // namespace comptrain
