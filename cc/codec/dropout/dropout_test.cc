#include "cc/codec/dropout/dropout.h"

#include <cmath>
#include <cstring>

#include "cc/codec/masks/bitmask.h"
#include "cc/codec/dropout/dropout_kernels.h"
#include "cc/codec/testing/data.h"
#include "cc/codec/testing/isas.h"
#include "cc/codec/testing/threads.h"

namespace comptrain {
namespace {

struct Words {
  uint32_t w[4];
};

// One block of Philox 4x32-10, as the paper has it.
Words Reference(Words c, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c.w[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c.w[2];
    c = {{static_cast<uint32_t>(b >> 32) ^ c.w[1] ^ key0,
          static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ c.w[3] ^ key1,
          static_cast<uint32_t>(a)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return c;
}

// The word of element i.
uint32_t Word(const Philox& p, int64_t i) {
  const uint64_t low = p.counter[0] + static_cast<uint64_t>(i / 4);
  const uint64_t high = p.counter[1] + (low < p.counter[0]);
  const Words c = {
      {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
       static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)}};
  return Reference(c, static_cast<uint32_t>(p.key),
                   static_cast<uint32_t>(p.key >> 32))
      .w[i % 4];
}

// Of the authors' own test vectors.
void TestKnownNumbers() {
  const Words zero = Reference({{0, 0, 0, 0}}, 0, 0);
  const uint32_t of_zero[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  const uint32_t all = 0xffffffff;
  const Words ones = Reference({{all, all, all, all}}, all, all);
  const uint32_t of_ones[] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  for (int i = 0; i < 4; ++i) {
    CHECK_EQ(zero.w[i], of_zero[i]);
    CHECK_EQ(ones.w[i], of_ones[i]);
  }
}

// Counters that carry from each word to the next.
const Philox kStates[] = {{0x123456789abcdef0, {0, 0}},
                          {7, {0xfffffffd, 5}},
                          {~uint64_t{0}, {~uint64_t{0} - 2, 0xffffffff}},
                          {1, {~uint64_t{0} - 1, ~uint64_t{0}}}};

void TestDraw(const Philox& state) {
  const DrawParams params = {state, 0x7fffff, 0x333333};
  for (const Isa isa : AvailableIsas()) {
    for (const int64_t first : {0, 8, 512}) {
      uint8_t bits[40];
      DropoutKernelsOf(isa).draw(params, first, sizeof bits, bits);
      for (int64_t i = 0; i < 320; ++i) {
        const bool kept = (Word(state, 8 * first + i) & 0x7fffff) >= 0x333333;
        CHECK_EQ(bits[i / 8] >> i % 8 & 1, kept);
      }
    }
  }
}

// What TensorFlow makes of a word: a mantissa of that many bits, less one.
float Uniform(uint32_t word, DType dtype) {
  const int bits = dtype == DType::kBF16 ? 7 : dtype == DType::kF16 ? 10 : 23;
  return std::ldexp(static_cast<float>(word & ((1u << bits) - 1)), -bits);
}

float Stored(float v, DType dtype) {
  uint8_t item[4];
  StoreFloat(v, dtype, item, 0);
  return LoadFloat(item, dtype, 0);
}

void TestDropout(DType dtype, int64_t n, float rate) {
  const Philox& state = kStates[1];
  const float scale = 1 / (1 - rate);
  const int64_t item = ItemBytes(dtype), bytes = n * item;
  Buffer x(bytes, static_cast<int>(item));
  FillRandom(static_cast<uint32_t>(n), dtype, n, 4, x.data());
  for (const ParallelFor& parallel : ParallelVariants()) {
    Buffer y(bytes), bits(BitmaskBytes(n));
    if (n > 0) std::memcpy(y.data(), x.data(), bytes);
    Dropout({y.data(), dtype, n}, {rate, scale, state}, y.data(), bits.data(),
            parallel);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      const bool kept = Uniform(Word(state, i), dtype) >= Stored(rate, dtype);
      wrong += (bits.data()[i / 8] >> i % 8 & 1) != kept;
      const float expected =
          kept ? Stored(LoadFloat(x.data(), dtype, i) * Stored(scale, dtype),
                        dtype)
               : 0;
      wrong += !SameNumber(LoadFloat(y.data(), dtype, i), expected);
    }
    CHECK_EQ(wrong, 0);
    if (n % 8 != 0) CHECK_EQ(bits.data()[n / 8] >> n % 8, 0);
  }
}

}  // namespace
}  // namespace comptrain

int main() {
  using namespace comptrain;
  TestKnownNumbers();
  for (const Philox& state : kStates) TestDraw(state);
  for (const DType dtype : kAllDTypes) {
    for (const int64_t n : {0, 1, 7, 8, 31, 33, 4095, 4096, 4097, 20011}) {
      for (const float rate : {0.1f, 0.5f, 0.999f}) TestDropout(dtype, n, rate);
    }
  }
  return FinishTests();
}
