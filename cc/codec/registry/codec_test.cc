// Every codec by its name, and its streams by their header.
#include "cc/codec/registry/codec.h"

#include "cc/codec/testing/codecs.h"

namespace comptrain {
namespace {

void TestRoundTrip() {
  const EncodeParams p = Params(DType::kF32, 96 * 64, 64, 0.1f, true, 12);
  std::vector<float> v(p.n);
  for (int64_t i = 0; i < p.n; ++i) v[i] = i % 3 ? 0.01f * (i % 100) : 0;
  const Bytes x = ToTensor(v, p.dtype);
  for (const char* name : {"plane", "rans", "zvc"}) {
    CodecId id{};
    CHECK(CodecFromName(name, &id));
    const auto encoder = MakeEncoder(id, p);
    Bytes scratch(encoder->scratch_bytes());
    CHECK(encoder->Encode(x.data(), scratch.data(), scratch.size(), SerialFor)
              .ok());
    Bytes stream(encoder->total_bytes());
    CHECK(encoder->Write(stream.data(), SerialFor).ok());
    CHECK_EQ(static_cast<int>(stream[5]), static_cast<int>(id));
    CHECK(encoder->nonzero() > 0);
    Bytes y(x.size(), 0xcd), dx(x.size(), 0xcd);
    CHECK(DecodeStream({stream.data(), stream.size(), p.dtype, p.n}, y.data(),
                       SerialFor)
              .ok());
    CHECK_EQ(Violations(x, y, p), 0);
    CHECK(StreamMaskGradient({stream.data(), stream.size(), p.dtype, p.n},
                             x.data(), dx.data(), SerialFor)
              .ok());
    CHECK(dx == x);
    // A codec that does not exist.
    stream[5] = 77;
    const Status s = DecodeStream({stream.data(), stream.size(), p.dtype, p.n},
                                  y.data(), SerialFor);
    CHECK(s.code == Code::kDamagedStream);
    CHECK_MSG(s.message.find("field codec") != std::string::npos, s.message);
  }
}

void TestUnknown() {
  CodecId id{};
  CHECK(!CodecFromName("zip", &id));
  CHECK(MakeEncoder(static_cast<CodecId>(77), EncodeParams()) == nullptr);
  CHECK(!DecodeStream({nullptr, 0, DType::kF32, 0}, nullptr, SerialFor).ok());
}

}  // namespace
}  // namespace comptrain

int main() {
  comptrain::TestRoundTrip();
  comptrain::TestUnknown();
  return comptrain::FinishTests();
}
