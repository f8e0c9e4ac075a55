#include "cc/codec/common/half.h"

#include <cmath>

#include "cc/codec/testing/harness.h"

namespace comptrain {
namespace {

// The value of a finite 16-bit float, from its definition.
double Value(unsigned bits, int fraction_bits, int bias) {
  const unsigned magnitude = bits & 0x7fff;
  const unsigned exponent = magnitude >> fraction_bits;
  const unsigned fraction = magnitude & ((1u << fraction_bits) - 1);
  const double significand =
      exponent == 0 ? fraction : fraction + (1u << fraction_bits);
  const double v =
      std::ldexp(significand, static_cast<int>(exponent == 0 ? 1 : exponent) -
                                  bias - fraction_bits);
  return bits & 0x8000 ? -v : v;
}

struct Format {
  int fraction_bits, bias;
  unsigned infinity;
  float (*to_float)(uint16_t);
  uint16_t (*from_float)(float);
};
const Format kFormats[] = {{7, 127, 0x7f80, BF16ToFloat, FloatToBF16},
                           {10, 15, 0x7c00, F16ToFloat, FloatToF16}};

void TestEveryValue(const Format& f) {
  int64_t wrong = 0;
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const float v = f.to_float(static_cast<uint16_t>(bits));
    const unsigned magnitude = bits & 0x7fff;
    if (magnitude > f.infinity) {
      const unsigned back = f.from_float(v);
      const unsigned quiet = bits | 1u << (f.fraction_bits - 1);
      wrong += !std::isnan(v) || back != quiet;
      continue;
    }
    wrong += f.from_float(v) != bits;
    wrong += magnitude == f.infinity
                 ? !std::isinf(v)
                 : v != Value(bits, f.fraction_bits, f.bias);
    wrong += std::signbit(v) != (bits >= 0x8000);
  }
  CHECK_EQ(wrong, 0);
}

// Around the middle of two neighbours: below, at and above it.
void TestRounding(const Format& f) {
  int64_t wrong = 0;
  for (unsigned low = 0; low < f.infinity; ++low) {
    const double next = Value(low, f.fraction_bits, f.bias) +
                        (Value(low + 1, f.fraction_bits, f.bias) -
                         Value(low, f.fraction_bits, f.bias));
    const double middle = (Value(low, f.fraction_bits, f.bias) + next) / 2;
    if (middle > 3.4028235e38) continue;
    const float tie = static_cast<float>(middle);
    const unsigned even = low % 2 == 0 ? low : low + 1;
    wrong += f.from_float(tie) != even;
    wrong += f.from_float(-tie) != (even | 0x8000);
    wrong += f.from_float(std::nextafter(tie, 0.0f)) != low;
    wrong += f.from_float(std::nextafter(tie, INFINITY)) != low + 1;
  }
  CHECK_EQ(wrong, 0);
}

void TestNan(const Format& f) {
  CHECK(std::isnan(f.to_float(f.from_float(NAN))));
  CHECK(std::isnan(f.to_float(f.from_float(BitsFloat(0x7f800001)))));
  CHECK_EQ(f.from_float(BitsFloat(0xff800001)) >> 15, 1);
  CHECK_EQ(f.from_float(BitsFloat(0xffffffff)) >> 15, 1);
}

}  // namespace
}  // namespace comptrain

int main() {
  for (const comptrain::Format& f : comptrain::kFormats) {
    comptrain::TestEveryValue(f);
    comptrain::TestRounding(f);
    comptrain::TestNan(f);
  }
  return comptrain::FinishTests();
}
