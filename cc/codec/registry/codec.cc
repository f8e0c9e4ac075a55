#include "cc/codec/registry/codec.h"

#include "cc/codec/plane/plane.h"
#include "cc/codec/rans/rans.h"
#include "cc/codec/statistics/tensor_stats.h"
#include "cc/codec/stream/check_params.h"
#include "cc/codec/zvc/zvc.h"

namespace comptrain {
namespace {

// Encoder: PlaneEncoder or one made like it.
template <class Encoder, size_t (*kScratchBytes)(int64_t, int64_t, DType)>
class Adapter : public StreamEncoder {
 public:
  Adapter(const EncodeParams& params, Isa isa)
      : scratch_bytes_(kScratchBytes(params.n, params.channels, params.dtype)),
        encoder_(params, isa) {}

  size_t scratch_bytes() const override { return scratch_bytes_; }
  Status Encode(const void* x, uint8_t* scratch, size_t scratch_bytes,
                const ParallelFor& parallel) override {
    return encoder_.Encode(x, scratch, scratch_bytes, parallel);
  }
  size_t total_bytes() const override { return encoder_.total_bytes(); }
  const EncodeStats& stats() const override { return encoder_.stats(); }
  Status Write(uint8_t* stream, const ParallelFor& parallel) override {
    return encoder_.Write(stream, parallel);
  }

 private:
  size_t scratch_bytes_;
  Encoder encoder_;
};

// Lossless: no bound, no scratch memory, and only non-zeros are counted; the
// sums are what a sample says.
class ZvcAdapter : public StreamEncoder {
 public:
  ZvcAdapter(const EncodeParams& params, Isa isa)
      : dtype_(params.dtype),
        n_(params.n),
        encoder_(params, isa) {}

  size_t scratch_bytes() const override { return 0; }
  Status Encode(const void* x, uint8_t* /*scratch*/, size_t /*scratch_bytes*/,
                const ParallelFor& parallel) override {
    const Status s = encoder_.Encode(x, parallel);
    if (!s.ok()) return s;
    const double sigma = SampleSigma(x, dtype_, n_);
    stats_.nonzero = encoder_.nonzero();
    stats_.sum_sq = sigma * sigma * static_cast<double>(n_);
    return s;
  }
  size_t total_bytes() const override { return encoder_.total_bytes(); }
  const EncodeStats& stats() const override { return stats_; }
  Status Write(uint8_t* stream, const ParallelFor& parallel) override {
    return encoder_.Write(stream, parallel);
  }

 private:
  const DType dtype_;
  const int64_t n_;
  ZvcEncoder encoder_;
  EncodeStats stats_;
};

struct Codec {
  CodecId id;
  std::unique_ptr<StreamEncoder> (*make)(const EncodeParams&, Isa);
  decltype(&PlaneDecode) decode;
  decltype(&PlaneMaskGradient) mask;
};

template <class T>
std::unique_ptr<StreamEncoder> Make(const EncodeParams& params, Isa isa) {
  return std::unique_ptr<StreamEncoder>(new T(params, isa));
}

constexpr Codec kCodecs[] = {
    {CodecId::kPlane, Make<Adapter<PlaneEncoder, PlaneScratchBytes>>,
     PlaneDecode, PlaneMaskGradient},
    {CodecId::kRans, Make<Adapter<RansEncoder, RansScratchBytes>>,
     RansDecode, RansMaskGradient},
    {CodecId::kZvc, Make<ZvcAdapter>, ZvcDecode, ZvcMaskGradient},
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

Status DecodeStream(const uint8_t* stream, size_t stream_bytes, DType dtype,
                    int64_t n, void* out, const ParallelFor& parallel,
                    Isa isa) {
  return CodecOf(stream, stream_bytes)
      .decode(stream, stream_bytes, dtype, n, out, parallel, isa);
}

Status StreamMaskGradient(const uint8_t* stream, size_t stream_bytes,
                          DType dtype, int64_t n, const void* dy, void* dx,
                          const ParallelFor& parallel, Isa isa) {
  return CodecOf(stream, stream_bytes)
      .mask(stream, stream_bytes, dtype, n, dy, dx, parallel, isa);
}

}  // namespace comptrain
