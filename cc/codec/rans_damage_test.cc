// Damaged streams of codec B end in an error or in some tensor, never in a
// crash. It shows most when all of cc/codec is built with
// -fsanitize=address,undefined -fno-sanitize-recover=all.
// COMPTRAIN_MUTATIONS=n: how many damaged streams, 100,000 without it.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "cc/codec/rans_layout.h"
#include "cc/codec/rans_test_util.h"

namespace comptrain {
namespace {

// Copies into a block of exactly that size, so that a sanitizer sees every
// byte read too many.
Status TryDecode(const uint8_t* stream, size_t bytes, const RansParams& p,
                 Isa isa, bool mask) {
  std::unique_ptr<uint8_t[]> exact(new uint8_t[bytes]);
  std::copy(stream, stream + bytes, exact.get());
  const size_t out_bytes = p.n * ItemBytes(p.dtype);
  std::unique_ptr<uint8_t[]> out(new uint8_t[out_bytes]());
  if (mask) {
    return RansMaskGradient(exact.get(), bytes, p.dtype, p.n, out.get(),
                             out.get(), SerialFor, isa);
  }
  return RansDecode(exact.get(), bytes, p.dtype, p.n, out.get(), SerialFor,
                     isa);
}

struct Sample {
  RansParams params;
  Bytes stream;
};

// Lanes of every mode, chunks coded, raw and zero, whole and cut off; at last
// one with counted frequencies.
std::vector<Sample> Samples() {
  std::vector<Sample> samples;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF32}) {
    for (int64_t channels : {32, 48, 20}) {
      const bool large = samples.size() >= 9;
      if (large && channels != 32) continue;
      const int64_t wanted = large ? 70000 : 2 * 4096 + 300;
      const int64_t n = wanted - wanted % channels;
      const RansParams p = RansParamsOf(dtype, n, channels, 0.1f, true, 16);
      std::vector<float> v(n);
      float walk = 0;
      for (int64_t i = 0; i < n; ++i) {
        const float g = normal(random);
        walk += 0.02f * g;
        v[i] = i / 4096 == 1 ? 0
               : i % 4 == 0  ? std::max(0.0f, g)
               : i % 4 == 1  ? 1000 * g
               : i % 4 == 2  ? 5 + walk
                             : g;
      }
      v[2 * 4096 + 9] = NAN;
      samples.push_back({p, EncodeRans(ToTensor(v, dtype), p,
                                       Isa::kBest).stream});
    }
  }
  return samples;
}

// Cut off there, the last chunk is one of zeros.
size_t LastChunk(const Sample& s) {
  StreamHeader h;
  std::memcpy(&h, s.stream.data(), sizeof h);
  uint32_t start;
  std::memcpy(&start,
              s.stream.data() + h.directory_offset + 4 * (h.n_chunks - 1),
              sizeof start);
  return h.payload_offset + 4 * size_t{start};
}

void TestTruncation() {
  for (const Sample& s : Samples()) {
    if (s.stream.size() > 20000) continue;
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
        CHECK(!TryDecode(cut.data(), length, s.params, isa, false).ok() ||
              length == LastChunk(s));
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
    const size_t last = samples.size() - 1;
    const Sample& s = samples[random() % 50 == 0 ? last : random() % last];
    Bytes damaged = s.stream;
    const int hits = 1 + static_cast<int>(random() % 4);
    for (int h = 0; h < hits; ++h) {
      // Half of the damage where it hurts most: header, directory, table.
      const size_t reach =
          std::min<size_t>(damaged.size(), random() % 2 ? ~size_t{0} : 256);
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
      const Bytes y = DecodeRans(damaged, s.params, isas[0]);
      for (Isa isa : isas) differing += DecodeRans(damaged, s.params, isa) != y;
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
  RansParams p = s.params;
  p.n -= 1;
  CHECK(!TryDecode(s.stream.data(), s.stream.size(), p, Isa::kBest, false).ok());
  p = s.params;
  p.dtype = DType::kBF16;
  CHECK(!TryDecode(s.stream.data(), s.stream.size(), p, Isa::kBest, false).ok());
  CHECK(!RansDecode(nullptr, 0, DType::kF32, 0, nullptr, SerialFor).ok());
}

void TestMaskNeedsMidRise() {
  const RansParams p = RansParamsOf(DType::kF32, 64, 32, 0.1f, false, 16);
  const Bytes stream = EncodeRans(Bytes(256), p, Isa::kBest).stream;
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
