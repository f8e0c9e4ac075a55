// The contract of codec C on the CPU, and what happens to damaged streams.
#include "cc/codec/zvc.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/codec/plane_test_util.h"
#include "cc/codec/test_data.h"

namespace comptrain {
namespace {

std::string Case(DType dtype, int64_t n, const std::string& what) {
  return what + ": dtype " + std::to_string(static_cast<int>(dtype)) + " n " +
         std::to_string(n);
}

Bytes Encode(const Bytes& x, DType dtype, int64_t n, Isa isa,
             const ParallelFor& parallel = SerialFor) {
  ZvcParams p;
  p.dtype = dtype;
  p.n = n;
  ZvcEncoder encoder(p, isa);
  Status s = encoder.Encode(x.data(), parallel);
  CHECK_MSG(s.ok(), s.message);
  Bytes stream(encoder.total_bytes(), 0x55);
  s = encoder.Write(stream.data(), parallel);
  CHECK_MSG(s.ok(), s.message);
  CHECK(stream.size() <= ZvcMaxBytes(n, dtype));
  return stream;
}

// Into and from blocks of exactly their size, so that a sanitizer sees every
// byte too many; the output is poisoned.
Status TryDecode(const Bytes& stream, DType dtype, int64_t n, Isa isa,
                 Bytes* y, const ParallelFor& parallel = SerialFor) {
  std::unique_ptr<uint8_t[]> exact(new uint8_t[stream.size()]);
  std::copy(stream.begin(), stream.end(), exact.get());
  y->assign(n * ItemBytes(dtype), 0xcd);
  y->shrink_to_fit();
  return ZvcDecode(exact.get(), stream.size(), dtype, n, y->data(), parallel,
                   isa);
}

// Bit for bit, with the same stream, whatever the instruction set and threads.
Bytes CheckRoundTrip(const Bytes& x, DType dtype, int64_t n,
                     const std::string& what) {
  const Bytes reference = Encode(x, dtype, n, Isa::kScalar);
  for (Isa isa : AvailableIsas()) {
    CHECK_MSG(Encode(x, dtype, n, isa) == reference, Case(dtype, n, what));
    Bytes y;
    const Status s = TryDecode(reference, dtype, n, isa, &y);
    CHECK_MSG(s.ok() && y == x, Case(dtype, n, what + s.message));
  }
  for (const ParallelFor& parallel : ParallelVariants()) {
    CHECK_MSG(Encode(x, dtype, n, Isa::kBest, parallel) == reference,
              Case(dtype, n, what + " threads"));
    Bytes y;
    CHECK(TryDecode(reference, dtype, n, Isa::kBest, &y, parallel).ok());
    CHECK_MSG(y == x, Case(dtype, n, what + " threads"));
  }
  return reference;
}

// `density` of the elements have random bits, any bits: NaN, -0, subnormals.
Bytes RandomBits(DType dtype, int64_t n, double density, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes x(n * ItemBytes(dtype));
  const uint32_t limit = static_cast<uint32_t>(density * 4294967295.0);
  for (int64_t i = 0; i < n; ++i) {
    if (random() > limit) continue;
    const uint32_t bits = random() % 16 ? random() | 1 : 0x80000000u;
    const size_t item = ItemBytes(dtype);
    std::memcpy(x.data() + i * item,
                reinterpret_cast<const uint8_t*>(&bits) + 4 - item, item);
  }
  return x;
}

constexpr int64_t kSizes[] = {0,    1,    2,    15,   31,    32,    33,   100,
                              2047, 2048, 2049, 4096, 32767, 32768, 32769,
                              70001};
constexpr double kDensities[] = {0, 0.001, 0.02, 0.3, 0.5, 0.95, 0.98, 1};

void TestRoundTrips() {
  for (DType dtype : kAllDTypes) {
    for (int64_t n : kSizes) {
      for (double density : kDensities) {
        CheckRoundTrip(RandomBits(dtype, n, density, 1), dtype, n, "random");
      }
      for (int special : {0, 1, 3}) {
        Bytes x(n * ItemBytes(dtype));
        FillRandom(2, dtype, n, special, x.data());
        CheckRoundTrip(x, dtype, n, "special");
      }
    }
  }
}

// Within 1% (f32) of one mask bit an element and the values, and next to
// nothing more where that would not pay.
void TestSizes() {
  // Streams on both sides of the size that StreamLines is used from.
  const int64_t n = 3 << 19;
  for (DType dtype : kAllDTypes) {
    const double item_bits = 8.0 * ItemBytes(dtype);
    for (double density : {0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9}) {
      const Bytes x = RandomBits(dtype, n, density, 3);
      int64_t nonzero = 0;
      for (int64_t i = 0; i < n; ++i) {
        const uint8_t* at = x.data() + i * ItemBytes(dtype);
        nonzero += std::any_of(at, at + ItemBytes(dtype),
                               [](uint8_t b) { return b != 0; });
      }
      const double d = static_cast<double>(nonzero) / n;
      const double expected = item_bits / (1 + item_bits * d);
      const double ratio = static_cast<double>(x.size()) /
                           Encode(x, dtype, n, Isa::kBest).size();
      CHECK_MSG(ratio >= (item_bits == 32 ? 0.99 : 0.985) * expected,
                std::to_string(ratio) + " < " + std::to_string(expected));
    }
    const Bytes dense(n * ItemBytes(dtype), 0x3f);
    const size_t bytes = Encode(dense, dtype, n, Isa::kBest).size();
    CHECK(bytes < 1.002 * dense.size());
  }
}

void TestMaskGradient() {
  const int64_t n = 5001;
  for (DType dtype : kAllDTypes) {
    Bytes x(n * ItemBytes(dtype));
    FillRandom(4, dtype, n, 2, x.data());
    const Bytes stream = Encode(x, dtype, n, Isa::kBest);
    for (DType dy_dtype : kAllDTypes) {
      const size_t item = ItemBytes(dy_dtype);
      Bytes dy(n * item);
      FillRandom(5, dy_dtype, n, 9, dy.data());
      for (Isa isa : AvailableIsas()) {
        Bytes dx = dy;  // in place
        CHECK(ZvcMaskGradient(stream.data(), stream.size(), dy_dtype, n,
                              dx.data(), dx.data(), SerialFor, isa).ok());
        int64_t wrong = 0;
        const Bytes zero(item);
        for (int64_t i = 0; i < n; ++i) {
          const bool on = !IsZeroValue(LoadFloat(x.data(), dtype, i));
          const uint8_t* want = on ? dy.data() + i * item : zero.data();
          wrong += std::memcmp(dx.data() + i * item, want, item) != 0;
        }
        CHECK_EQ(wrong, 0);
      }
    }
  }
}

void TestHeaderFields() {
  const int64_t n = 3000;
  const Bytes x = RandomBits(DType::kF32, n, 0.5, 6);
  const Bytes stream = Encode(x, DType::kF32, n, Isa::kBest);
  const struct {
    size_t offset;
    const char* field;
  } fields[] = {{0, "magic"},     {4, "version"},
                {5, "codec"},     {6, "dtype"},
                {7, "flags"},     {8, "n"},
                {16, "channels"}, {20, "log2_pixels"},
                {24, "step"},     {28, "inv"},
                {32, "total_bytes"}, {40, "n_chunks"},
                {44, "directory_offset"}, {48, "table_offset"},
                {52, "payload_offset"}, {56, "padding"}};
  Bytes y;
  for (const auto& f : fields) {
    Bytes damaged = stream;
    damaged[f.offset] ^= 0x40;
    const Status st = TryDecode(damaged, DType::kF32, n, Isa::kBest, &y);
    CHECK(st.code == Code::kDamagedStream);
    CHECK_MSG(st.message.find(f.field) != std::string::npos, st.message);
  }
  CHECK(!TryDecode(stream, DType::kF32, n - 1, Isa::kBest, &y).ok());
  CHECK(!TryDecode(stream, DType::kF16, n, Isa::kBest, &y).ok());
  CHECK(!ZvcDecode(nullptr, 0, DType::kF32, 0, nullptr, SerialFor).ok());
}

void TestTruncation() {
  for (DType dtype : kAllDTypes) {
    const int64_t n = 2500;
    const Bytes stream =
        Encode(RandomBits(dtype, n, 0.3, 7), dtype, n, Isa::kBest);
    Bytes y;
    for (size_t length = 0; length < stream.size(); ++length) {
      Bytes cut(stream.begin(), stream.begin() + length);
      CHECK(!TryDecode(cut, dtype, n, Isa::kBest, &y).ok());
      // A header that agrees with the length: the payload does not.
      const uint64_t total = length;
      if (length >= 64) std::memcpy(cut.data() + 32, &total, sizeof total);
      CHECK(!TryDecode(cut, dtype, n, Isa::kBest, &y).ok());
    }
    Bytes longer = stream;
    longer.push_back(0);
    CHECK(!TryDecode(longer, dtype, n, Isa::kBest, &y).ok());
  }
}

// Every instruction set agrees on what is an error, and on the values.
void TestMutations() {
  std::mt19937 random(8);
  int64_t rejected = 0, differing = 0;
  for (int i = 0; i < 30000; ++i) {
    const DType dtype = kAllDTypes[i % 3];
    const int64_t n = 1000 + i % 7 * 700;
    static Bytes streams[21];
    Bytes& stream = streams[i % 21];
    if (stream.empty()) {
      stream = Encode(RandomBits(dtype, n, 0.25 * (i % 5), i), dtype, n,
                      Isa::kBest);
    }
    Bytes damaged = stream;
    for (int h = static_cast<int>(random() % 4); h >= 0; --h) {
      const size_t reach = random() % 2 ? damaged.size() : 112;
      damaged[random() % std::min(reach, damaged.size())] ^=
          static_cast<uint8_t>(1u << random() % 8);
    }
    Bytes reference, y;
    const bool ok = TryDecode(damaged, dtype, n, Isa::kScalar, &reference).ok();
    rejected += !ok;
    for (Isa isa : AvailableIsas()) {
      differing += TryDecode(damaged, dtype, n, isa, &y).ok() != ok ||
                   (ok && y != reference);
    }
  }
  CHECK_EQ(differing, 0);
  CHECK(rejected > 0 && rejected < 30000);
}

void TestBadArguments() {
  ZvcParams p;
  p.n = 10;
  float x[10] = {};
  CHECK(!ZvcEncoder(p).Encode(nullptr, SerialFor).ok());
  CHECK(!ZvcEncoder(p).Write(nullptr, SerialFor).ok());
  p.channels = 3;
  CHECK(ZvcEncoder(p).Encode(x, SerialFor).code == Code::kInvalidArgument);
  p.channels = 1;
  p.n = -1;
  CHECK(ZvcEncoder(p).Encode(x, SerialFor).code == Code::kInvalidArgument);
}

}  // namespace
}  // namespace comptrain

int main() {
  comptrain::TestRoundTrips();
  comptrain::TestSizes();
  comptrain::TestMaskGradient();
  comptrain::TestHeaderFields();
  comptrain::TestTruncation();
  comptrain::TestMutations();
  comptrain::TestBadArguments();
  return comptrain::FinishTests();
}
