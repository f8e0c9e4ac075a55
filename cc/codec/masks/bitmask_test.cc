#include "cc/codec/masks/bitmask.h"

#include <cmath>
#include <vector>

#include "cc/codec/masks/bitmask_kernels.h"
#include "cc/codec/testing/data.h"
#include "cc/codec/testing/isas.h"
#include "cc/codec/testing/threads.h"

namespace comptrain {
namespace {

const std::vector<int64_t> kSizes = {0,  1,   7,    8,    9,    15,
                                     16, 17,  31,   33,   63,   64,
                                     65, 100, 4095, 4096, 4097, 20011};

struct Factors {
  float on, off;
};
const Factors kFactors[] = {{1, 0},     {2, 0},     {1, 0.2f},
                            {1, 1},     {0.3f, -3}, {0, 1},
                            {1.25f, 0}, {1, -0.0f}, {1, INFINITY}};

Buffer ReferencePack(const Buffer& x, DType dtype, int64_t n, float lower,
                     float upper) {
  Buffer bits(BitmaskBytes(n));
  if (bits.bytes() > 0) std::memset(bits.data(), 0, bits.bytes());
  for (int64_t i = 0; i < n; ++i) {
    const float v = LoadFloat(x.data(), dtype, i);
    if (v > lower && v < upper) bits.data()[i / 8] |= 1 << (i % 8);
  }
  return bits;
}

void TestPack(DType dtype, int64_t n, float lower, float upper) {
  // A misaligned input: tensors may be slices.
  Buffer x(n * ItemBytes(dtype), static_cast<int>(ItemBytes(dtype)));
  FillRandom(static_cast<uint32_t>(n), dtype, n, 4, x.data());
  const Buffer expected = ReferencePack(x, dtype, n, lower, upper);
  for (const Isa isa : AvailableIsas()) {
    const BitmaskKernels* const table = &BitmaskKernelsOf(isa);
    Buffer bits(BitmaskBytes(n));
    table->pack[static_cast<int>(dtype)](x.data(), n, lower, upper,
                                         bits.data());
    CHECK(bits == expected);
  }
  for (const ParallelFor& parallel : ParallelVariants()) {
    Buffer bits(BitmaskBytes(n));
    BitmaskPack({x.data(), dtype, n}, {lower, upper}, bits.data(), parallel);
    CHECK(bits == expected);
  }
}

// Bit-exact where a value passes or vanishes, the same number elsewhere.
void CheckGradient(const Buffer& dx, const Buffer& bits, const Buffer& dy,
                   DType dtype, int64_t n, Factors f) {
  const int64_t item = ItemBytes(dtype);
  const uint8_t zero[4] = {};
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) {
    const bool bit = bits.data()[i / 8] >> (i % 8) & 1;
    const float factor = bit ? f.on : f.off;
    const uint8_t* exact = nullptr;
    if (factor == 1) exact = dy.data() + i * item;
    if (!bit && factor == 0) exact = zero;
    if (exact != nullptr) {
      wrong += std::memcmp(dx.data() + i * item, exact, item) != 0;
      continue;
    }
    uint8_t product[4];
    StoreFloat(LoadFloat(dy.data(), dtype, i) * factor, dtype, product, 0);
    wrong += !SameNumber(LoadFloat(dx.data(), dtype, i),
                         LoadFloat(product, dtype, 0));
  }
  CHECK_EQ(wrong, 0);
}

void TestGradient(DType dtype, int64_t n, Factors f) {
  const int64_t bytes = n * ItemBytes(dtype);
  Buffer bits(BitmaskBytes(n)), dy(bytes, 4);
  FillRandom(static_cast<uint32_t>(n) + 1, dtype, n, 4, dy.data());
  std::mt19937 random(7);
  for (int64_t i = 0; i < bits.bytes(); ++i) {
    bits.data()[i] = static_cast<uint8_t>(random());
  }
  for (const Isa isa : AvailableIsas()) {
    const BitmaskKernels* const table = &BitmaskKernelsOf(isa);
    Buffer dx(bytes);
    table->gradient[static_cast<int>(dtype)](bits.data(), n, f.on, f.off,
                                             dy.data(), dx.data());
    CheckGradient(dx, bits, dy, dtype, n, f);
  }
  Buffer first(bytes);
  BitmaskGradient(bits.data(), {f.on, f.off}, {dy.data(), dtype, n},
                  first.data(), SerialFor);
  for (const ParallelFor& parallel : ParallelVariants()) {
    Buffer in_place(bytes);
    if (n > 0) std::memcpy(in_place.data(), dy.data(), bytes);
    BitmaskGradient(bits.data(), {f.on, f.off}, {in_place.data(), dtype, n},
                    in_place.data(), parallel);
    CHECK(in_place == first);
  }
}

// The bits of a few values, by hand.
void TestKnownBits() {
  const float x[] = {-1, -0.0f, 0, 1e-30f, 5.9f, 6, INFINITY, NAN, 3};
  uint8_t bits[2] = {0xff, 0xff};
  BitmaskPack({x, DType::kF32, 9}, {0, 6}, bits, SerialFor);
  CHECK_EQ(bits[0], 0x18);
  CHECK_EQ(bits[1], 1);
  const float dy[] = {1, 2, 3, 4, NAN, NAN, 7, 8, -0.0f};
  float dx[9];
  BitmaskGradient(bits, {1, 0}, {dy, DType::kF32, 9}, dx, SerialFor);
  CHECK_EQ(dx[0], 0);
  CHECK_EQ(dx[3], 4);
  CHECK(std::isnan(dx[4]));
  CHECK(dx[5] == 0 && !std::signbit(dx[5]));
  CHECK(std::signbit(dx[8]));
}

}  // namespace
}  // namespace comptrain

int main() {
  using namespace comptrain;
  TestKnownBits();
  for (const DType dtype : kAllDTypes) {
    for (const int64_t n : kSizes) {
      TestPack(dtype, n, 0, INFINITY);
      TestPack(dtype, n, 0, 6);
      TestPack(dtype, n, -2, 3.5f);
      TestPack(dtype, n, -INFINITY, INFINITY);
      TestPack(dtype, n, 1, 1);
      TestPack(dtype, n, NAN, 1);
      for (const Factors f : kFactors) TestGradient(dtype, n, f);
    }
  }
  return FinishTests();
}
