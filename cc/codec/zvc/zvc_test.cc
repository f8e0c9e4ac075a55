// The contract of zvc on the CPU.
#include "cc/codec/zvc/zvc.h"

#include <memory>
#include <random>
#include <string>

#include "cc/codec/testing/codecs.h"
#include "cc/codec/testing/data.h"

namespace comptrain {
namespace {

std::string Case(DType dtype, int64_t n, const std::string& what) {
  return what + ": dtype " + std::to_string(static_cast<int>(dtype)) + " n " +
         std::to_string(n);
}

Bytes Encode(const Bytes& x, DType dtype, int64_t n, Isa isa,
             const ParallelFor& parallel = SerialFor) {
  EncodeParams p;
  p.dtype = dtype;
  p.n = n;
  const auto encoder = MakeZvcEncoder(p, isa);
  Status s = encoder->Encode(x.data(), nullptr, 0, parallel);
  CHECK_MSG(s.ok(), s.message);
  Bytes stream(encoder->total_bytes(), 0x55);
  s = encoder->Write(stream.data(), parallel);
  CHECK_MSG(s.ok(), s.message);
  CHECK(stream.size() <= ZvcMaxBytes(n, dtype));
  return stream;
}

// Into and from blocks of exactly their size, so that a sanitizer sees every
// byte too many; the output is poisoned.
Status TryDecode(const Bytes& stream, DType dtype, int64_t n, Isa isa, Bytes* y,
                 const ParallelFor& parallel = SerialFor) {
  std::unique_ptr<uint8_t[]> exact(new uint8_t[stream.size()]);
  std::copy(stream.begin(), stream.end(), exact.get());
  y->assign(n * ItemBytes(dtype), 0xcd);
  y->shrink_to_fit();
  return ZvcDecode({exact.get(), stream.size(), dtype, n}, y->data(), parallel,
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

constexpr int64_t kSizes[] = {0,     1,     2,     15,   31,   32,
                              33,    100,   2047,  2048, 2049, 4096,
                              32767, 32768, 32769, 70001};
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
        CHECK(ZvcMaskGradient({stream.data(), stream.size(), dy_dtype, n},
                              dx.data(), dx.data(), SerialFor, isa)
                  .ok());
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

void TestBadArguments() {
  EncodeParams p;
  p.n = 10;
  float x[10] = {};
  const auto encode = [&p](const float* x) {
    return MakeZvcEncoder(p)->Encode(x, nullptr, 0, SerialFor);
  };
  CHECK(!encode(nullptr).ok());
  CHECK(!MakeZvcEncoder(p)->Write(nullptr, SerialFor).ok());
  p.channels = 3;
  CHECK(encode(x).code == Code::kInvalidArgument);
  p.channels = 1;
  p.n = -1;
  CHECK(encode(x).code == Code::kInvalidArgument);
}

}  // namespace
}  // namespace comptrain

int main() {
  comptrain::TestRoundTrips();
  comptrain::TestSizes();
  comptrain::TestMaskGradient();
  comptrain::TestBadArguments();
  return comptrain::FinishTests();
}
