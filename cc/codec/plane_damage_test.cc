// Damaged streams of codec A end in an error or in some tensor, never in a
// crash. It shows most when all of cc/codec is built with
// -fsanitize=address,undefined -fno-sanitize-recover=all.
// COMPTRAIN_MUTATIONS=n: how many damaged streams, 100,000 without it.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "cc/codec/plane_layout.h"
#include "cc/codec/plane_test_util.h"

namespace comptrain {
namespace {

// Copies into a block of exactly that size, so that a sanitizer sees every
// byte read too many.
Status TryDecode(const uint8_t* stream, size_t bytes, const PlaneParams& p,
                 Isa isa, bool mask) {
  std::unique_ptr<uint8_t[]> exact(new uint8_t[bytes]);
  std::copy(stream, stream + bytes, exact.get());
  const size_t out_bytes = p.n * ItemBytes(p.dtype);
  std::unique_ptr<uint8_t[]> out(new uint8_t[out_bytes]());
  if (mask) {
    return PlaneMaskGradient(exact.get(), bytes, p.dtype, p.n, out.get(),
                             out.get(), SerialFor, isa);
  }
  return PlaneDecode(exact.get(), bytes, p.dtype, p.n, out.get(), SerialFor,
                     isa);
}

struct Sample {
  PlaneParams params;
  Bytes stream;
};

// Narrow, wide, delta, raw and empty tiles, whole and cut off.
std::vector<Sample> Samples() {
  std::vector<Sample> samples;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (int64_t channels : {32, 20}) {
      const int64_t n = 5 * 1024 + 3 * channels - (5 * 1024 % channels);
      const PlaneParams p = Params(dtype, n, channels, 0.1f, true);
      std::vector<float> v(n);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t tile = i / 1024;
        const float g = normal(random);
        v[i] = tile == 0   ? std::max(0.0f, g)
               : tile == 1 ? 1000 * g
               : tile == 2 ? 5 + 0.1f * g
               : tile == 3 ? 0.0f
                           : g;
      }
      v[4 * 1024 + 9] = NAN;
      samples.push_back({p, EncodePlane(ToTensor(v, dtype), p,
                                        Isa::kBest).stream});
    }
  }
  return samples;
}

void TestTruncation() {
  for (const Sample& s : Samples()) {
    for (Isa isa : AvailableIsas()) {
      for (size_t length = 0; length < s.stream.size(); ++length) {
        const Status st =
            TryDecode(s.stream.data(), length, s.params, isa, false);
        CHECK_MSG(st.code == Code::kDamagedStream && !st.message.empty(),
                  "length " + std::to_string(length));
        // A header that agrees with the length: the payload does not.
        Bytes cut(s.stream.begin(), s.stream.begin() + length);
        const uint64_t total = length;
        if (length >= 64) std::memcpy(cut.data() + 32, &total, sizeof total);
        CHECK(!TryDecode(cut.data(), length, s.params, isa, false).ok());
      }
    }
  }
}

void TestExtraBytes() {
  Sample s = Samples()[0];
  s.stream.push_back(0);
  CHECK(!TryDecode(s.stream.data(), s.stream.size(), s.params, Isa::kBest,
                   false).ok());
}

// Every instruction set agrees on what is an error, and on the values.
void TestMutations() {
  const char* wanted = std::getenv("COMPTRAIN_MUTATIONS");
  const int count = wanted != nullptr ? std::atoi(wanted) : 100000;
  const std::vector<Sample> samples = Samples();
  const std::vector<Isa> isas = AvailableIsas();
  std::mt19937 random(12);
  int64_t rejected = 0, differing = 0;
  for (int i = 0; i < count; ++i) {
    const Sample& s = samples[random() % samples.size()];
    Bytes damaged = s.stream;
    const int hits = 1 + static_cast<int>(random() % 4);
    for (int h = 0; h < hits; ++h) {
      // Half of the damage where it hurts most: header, directory, table.
      const size_t reach = random() % 2 ? damaged.size() : 128;
      damaged[random() % reach] ^= static_cast<uint8_t>(1u << random() % 8);
    }
    const bool mask = random() % 4 == 0;
    const bool ok = TryDecode(damaged.data(), damaged.size(), s.params,
                              isas[0], mask).ok();
    rejected += !ok;
    for (size_t k = 1; k < isas.size(); ++k) {
      differing += TryDecode(damaged.data(), damaged.size(), s.params, isas[k],
                             mask).ok() != ok;
    }
    if (ok && !mask) {
      const Bytes y = DecodePlane(damaged, s.params, isas[0]);
      for (Isa isa : isas) differing += DecodePlane(damaged, s.params, isa) != y;
    }
  }
  CHECK_EQ(differing, 0);
  CHECK(rejected > 0 && rejected < count);
  std::printf("%lld of %d mutations rejected\n",
              static_cast<long long>(rejected), count);
}

// Each field of the header is checked, and the message names it.
void TestHeaderFields() {
  const Sample s = Samples()[0];
  const struct {
    size_t offset;
    const char* field;
  } fields[] = {{0, "magic"},     {4, "version"},
                {5, "codec"},     {6, "dtype"},
                {7, "flags"},     {8, "n"},
                {16, "channels"}, {20, "log2_pixels"},
                {24, "inv"},      {28, "inv"},
                {32, "total_bytes"}, {40, "n_chunks"},
                {44, "directory_offset"}, {48, "table_offset"},
                {52, "payload_offset"}, {56, "padding"},
                {63, "padding"}};
  for (const auto& f : fields) {
    Bytes damaged = s.stream;
    damaged[f.offset] ^= 0x40;
    const Status st = TryDecode(damaged.data(), damaged.size(), s.params,
                                Isa::kBest, false);
    CHECK(st.code == Code::kDamagedStream);
    CHECK_MSG(st.message.find(f.field) != std::string::npos, st.message);
  }
  // A length or type other than the caller's.
  PlaneParams p = s.params;
  p.n -= 1;
  CHECK(!TryDecode(s.stream.data(), s.stream.size(), p, Isa::kBest, false).ok());
  p = s.params;
  p.dtype = DType::kBF16;
  CHECK(!TryDecode(s.stream.data(), s.stream.size(), p, Isa::kBest, false).ok());
  CHECK(!PlaneDecode(nullptr, 0, DType::kF32, 0, nullptr, SerialFor).ok());
}

void TestMaskNeedsMidRise() {
  const PlaneParams p = Params(DType::kF32, 64, 32, 0.1f, false);
  const Bytes stream = EncodePlane(Bytes(256), p, Isa::kBest).stream;
  CHECK(TryDecode(stream.data(), stream.size(), p, Isa::kBest, true).code ==
        Code::kInvalidArgument);
}

}  // namespace
}  // namespace comptrain

int main() {
  comptrain::TestHeaderFields();
  comptrain::TestTruncation();
  comptrain::TestExtraBytes();
  comptrain::TestMaskNeedsMidRise();
  comptrain::TestMutations();
  return comptrain::FinishTests();
}
