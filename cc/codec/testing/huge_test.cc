// A tensor of more than 2^31 elements, with every codec: offsets and counts of
// 64 bits. COMPTRAIN_LONG=1, and 6 GB of memory; otherwise a small tensor.
#include <cstdlib>
#include <memory>

#include "cc/codec/testing/codecs.h"

namespace comptrain {
namespace {

constexpr DType kType = DType::kBF16;
constexpr float kBound = 0.1f;

// What ReLU leaves of something like normal values, by number.
float Value(int64_t i) {
  uint64_t h = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15;
  h ^= h >> 32;
  const int sum =
      static_cast<int>((h & 255) + (h >> 8 & 255) + (h >> 16 & 255));
  return sum > 383 ? static_cast<float>(sum - 383) * 0x1p-7f : 0.0f;
}

void TestHuge(CodecId codec, int64_t n) {
  std::unique_ptr<uint16_t[]> x(new uint16_t[n]);
  for (int64_t i = 0; i < n; ++i) StoreFloat(Value(i), kType, x.get(), i);
  const EncodeParams p = ParamsOf(kType, n, 64, kBound, Coding::kMidRise, 56);
  std::unique_ptr<uint8_t[]> stream;
  size_t bytes = 0;
  {
    const auto encoder = MakeEncoder(codec, p);
    Status s = encoder->Encode(x.get(), nullptr, 0, Threads(2));
    CHECK_MSG(s.ok(), s.message);
    bytes = encoder->total_bytes();
    stream.reset(new uint8_t[bytes]);
    s = encoder->Write(stream.get(), Threads(2));
    CHECK_MSG(s.ok(), s.message);
  }
  std::memset(x.get(), 0xff, 2 * n);
  const Status s =
      DecodeStream({stream.get(), bytes, kType, n}, x.get(), Threads(2));
  CHECK_MSG(s.ok(), s.message);
  int64_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint16_t rounded;
    StoreFloat(Value(i), kType, &rounded, 0);
    const float v = LoadFloat(&rounded, kType, 0);
    const float y = LoadFloat(x.get(), kType, i);
    const double error = std::fabs(static_cast<double>(v) - y);
    bad += IsLossless(codec)
               ? error != 0
               : !(error <= kBound + HalfUlp(y, kType)) || (v == 0) != (y == 0);
  }
  CHECK_EQ(bad, 0);
  std::printf("codec %d: %lld values in %zu bytes\n", static_cast<int>(codec),
              static_cast<long long>(n), bytes);
}

}  // namespace
}  // namespace comptrain

int main() {
  const char* wanted = std::getenv("COMPTRAIN_LONG");
  const bool huge = wanted != nullptr && wanted[0] == '1';
  const int64_t n = huge ? (int64_t{1} << 31) + 64 * 12345 : 64 * 12345;
  for (comptrain::CodecId codec :
       {comptrain::CodecId::kPlane, comptrain::CodecId::kRans,
        comptrain::CodecId::kZvc}) {
    comptrain::TestHuge(codec, n);
  }
  return comptrain::FinishTests();
}
