#include "cc/codec/fixed_rate/fixed_rate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cc/codec/fixed_rate/rows.h"
#include "cc/codec/fixed_rate/scale.h"
#include "cc/codec/testing/data.h"
#include "cc/codec/testing/isas.h"
#include "cc/codec/testing/threads.h"

namespace comptrain {
namespace {

const std::vector<std::vector<int64_t>> kShapes = {
    {1},           {17},          {5, 3},         {64, 40},     {256, 64},
    {2, 40, 3, 8}, {5, 7, 3, 13}, {16, 7, 7, 33}, {4, 300, 96}, {3, 1, 2, 515},
    {5, 3, 3, 64}, {33, 3, 32},   {7, 5, 320},    {8, 12, 32},  {50, 41, 16}};

std::string Name(const FixedRateTensor& of) {
  std::string name = std::to_string(of.coding.bits) + " bits";
  if (of.coding.mid_rise) name += ", mask";
  for (int64_t d : of.dims) name += " " + std::to_string(d);
  return name;
}

struct Encoded {
  Buffer stream;
  std::vector<float> state;
};

Encoded Encode(const FixedRateTensor& of, const void* x,
               const std::vector<float>& state, const ParallelFor& parallel,
               Isa isa) {
  BoundRule bound;
  bound.relative_bound = 0.1f;
  bound.decay = 0.9f;
  Encoded out = {Buffer(of.coding.StreamBytes(of.dims)),
                 std::vector<float>(kStateFields)};
  FixedRateEncode(of, {x, state.data(), bound, true},
                  {out.stream.data(), out.state.data()}, parallel, isa);
  return out;
}

Buffer Decode(const FixedRateTensor& of, const Encoded& encoded,
              const ParallelFor& parallel, Isa isa) {
  Buffer x_hat(ElementsOf(of.dims) * static_cast<int64_t>(ItemBytes(of.dtype)));
  FixedRateDecode({of, encoded.stream.data(), encoded.state.data()},
                  x_hat.data(), parallel, isa);
  return x_hat;
}

// Some values that are not finite among others, positive where a mask is kept.
// None is near the largest number: half a step on lies infinity.
Buffer Values(const FixedRateTensor& of, int special) {
  const int64_t n = ElementsOf(of.dims);
  Buffer x(n * static_cast<int64_t>(ItemBytes(of.dtype)));
  FillRandom(static_cast<uint32_t>(n + of.coding.bits), of.dtype, n, special,
             x.data());
  for (int64_t i = 0; i < n; ++i) {
    float v = LoadFloat(x.data(), of.dtype, i);
    if (std::isfinite(v)) v = std::clamp(v, -100.0f, 100.0f);
    if (of.coding.mid_rise) v = std::max(v, 0.0f);
    StoreFloat(v, of.dtype, x.data(), i);
  }
  return x;
}

// The same bytes for any number of threads and any instruction set.
void TestOneResult(const FixedRateTensor& of) {
  const Buffer x = Values(of, 11);
  std::vector<float> state(kStateFields);
  state[kBoundSet] = 0.5f;
  state[kSteps] = 7;
  const Encoded first = Encode(of, x.data(), state, SerialFor, Isa::kScalar);
  const Buffer x_hat = Decode(of, first, SerialFor, Isa::kScalar);
  CHECK_EQ(first.state[kSteps], 8.0f);
  CHECK_EQ(first.state[kBoundUsed], 0.5f);
  for (int64_t i = 0; i < ElementsOf(of.dims); ++i) {
    CHECK_MSG(std::isfinite(LoadFloat(x_hat.data(), of.dtype, i)), Name(of));
  }
  for (const Isa isa : AvailableIsas()) {
    for (const ParallelFor& parallel : ParallelVariants()) {
      const Encoded again = Encode(of, x.data(), state, parallel, isa);
      CHECK_MSG(again.stream == first.stream, Name(of));
      CHECK_MSG(again.state == first.state, Name(of));
      CHECK_MSG(Decode(of, again, parallel, isa) == x_hat, Name(of));
    }
  }
}

// The code of a value, bit after bit, by the layout of words.
uint32_t CodeAt(const FixedRateTensor& of, const Encoded& encoded, int64_t i) {
  const int bits = of.coding.bits, whole = of.coding.codes_a_word();
  const Rows rows{WordLayout(of.dims)};
  const int64_t in_block = i % rows.length;
  const auto member = static_cast<int>(in_block / rows.row);
  uint32_t code = 0;
  for (int bit = 0; bit < bits; ++bit) {
    const int left = member - bits * whole;
    const int word = left < 0 ? member / whole : bit;
    const int at = left < 0 ? member % whole * bits + bit : whole * bits + left;
    const int64_t number = (i / rows.length * bits + word) * rows.row;
    uint32_t value;
    std::memcpy(&value,
                encoded.stream.data() + 4 * (number + in_block % rows.row),
                sizeof value);
    code |= (value >> at & 1) << bit;
  }
  return code;
}

// The error of a value is at most half of the step of its group, and the mask
// is that of the values.
void TestBound(const FixedRateTensor& of) {
  const Buffer x = Values(of, 0);
  std::vector<float> state(kStateFields);
  state[kBoundSet] = 0.25f;
  const Encoded encoded = Encode(of, x.data(), state, SerialFor, Isa::kBest);
  const Buffer x_hat = Decode(of, encoded, SerialFor, Isa::kBest);
  const uint8_t* const scales =
      encoded.stream.data() + of.coding.WordBytes(of.dims);
  const Rows rows{ScaleLayout(of.dims)};
  const float step = StepOfScale1(encoded.state[kBoundUsed]);
  for (int64_t i = 0; i < ElementsOf(of.dims); ++i) {
    const float v = LoadFloat(x.data(), of.dtype, i);
    const float off = std::fabs(LoadFloat(x_hat.data(), of.dtype, i) - v);
    const int64_t group =
        i / rows.length * rows.row + i % rows.length % rows.row;
    const float most = ScaleOf(scales[group]) * step / 2 * 1.001f +
                       std::fabs(v) * (of.dtype == DType::kF32 ? 1e-6f : 1e-2f);
    CHECK_MSG(off <= most, Name(of));
  }
  if (!of.coding.mid_rise) return;
  for (int64_t i = 0; i < ElementsOf(of.dims); ++i) {
    CHECK_MSG((CodeAt(of, encoded, i) == 0) ==
                  (LoadFloat(x_hat.data(), of.dtype, i) == 0),
              Name(of));
  }
  Buffer dy = Values(of, 0), dx(dy.bytes());
  const FixedRateStream stream = {of, encoded.stream.data(), nullptr};
  FixedRateMaskGradient(stream, {dy.data()}, dx.data(), Threads(2));
  // Of a sum of equal terms, which is exact.
  Buffer of_sum = Values(of, 0);
  FixedRateMaskGradient(stream, {of_sum.data(), dy.data()}, of_sum.data(),
                        Threads(2));
  for (int64_t i = 0; i < ElementsOf(of.dims); ++i) {
    const float wanted = LoadFloat(x.data(), of.dtype, i) > 0
                             ? LoadFloat(dy.data(), of.dtype, i)
                             : 0;
    CHECK_MSG(LoadFloat(dx.data(), of.dtype, i) == wanted, Name(of));
    CHECK_MSG(LoadFloat(of_sum.data(), of.dtype, i) == 2 * wanted, Name(of));
  }
}

void TestScales() {
  for (const float x : {1e-30f, 0.5f, 1.0f, 1.5f, 7.0f, 1e9f}) {
    const uint8_t code = ScaleCodeFor(x);
    CHECK(ScaleOf(code) >= x);
    CHECK(code == 1 || ScaleOf(static_cast<uint8_t>(code - 1)) < x);
  }
  for (const float x : {0.0f, -1.0f, -INFINITY, NAN}) {
    CHECK_EQ(int{ScaleCodeFor(x)}, 0);
  }
  CHECK_EQ(int{ScaleCodeFor(INFINITY)}, 255);
  CHECK_EQ(ScaleOf(0), 0.0f);
}

// A bound that is relative follows the running sigma; its step is the error of
// a channel far from zero, whose centre is taken off.
void TestState() {
  const FixedRateTensor of = {{8, false}, {512, 4}, DType::kF32};
  std::vector<float> x(2048), state(kStateFields);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i % 4 == 0 ? 100 : 0) +
           std::sin(static_cast<float>(i));
  }
  const Encoded first = Encode(of, x.data(), state, SerialFor, Isa::kBest);
  CHECK(std::fabs(first.state[kSigma] - 43.3f) < 0.5f);
  CHECK_EQ(first.state[kRunningSigma], first.state[kSigma]);
  CHECK_EQ(first.state[kBoundUsed], 0.1f * first.state[kSigma]);
  const Buffer x_hat = Decode(of, first, SerialFor, Isa::kBest);
  for (size_t i = 0; i < x.size(); ++i) {
    const float v = LoadFloat(x_hat.data(), DType::kF32, i);
    CHECK(std::fabs(v - x[i]) < 0.02f);
  }
  for (float& v : x) v *= 2;
  const Encoded next = Encode(of, x.data(), first.state, SerialFor, Isa::kBest);
  CHECK_EQ(next.state[kBoundUsed], 0.1f * first.state[kRunningSigma]);
  CHECK(std::fabs(next.state[kRunningSigma] / first.state[kSigma] - 1.1f) <
        1e-3f);
}

float FarthestOff(const Buffer& x_hat, const Buffer& x, DType dtype,
                  int64_t first, int64_t n) {
  float off = 0;
  for (int64_t i = first; i < first + n; ++i) {
    off = std::max(off, std::fabs(LoadFloat(x_hat.data(), dtype, i) -
                                  LoadFloat(x.data(), dtype, i)));
  }
  return off;
}

// The error of a row that is longer or shorter than the others is in
// proportion to it, and theirs is about what it would be without.
void TestRows(DType dtype, bool mid_rise) {
  constexpr int64_t kChannels = 96, kRows = 128;
  FixedRateTensor of = {{4, mid_rise}, {2, 64, kChannels}, dtype};
  std::vector<float> state(kStateFields);
  state[kBoundSet] = 0.25f;
  Buffer x = Values(of, 0);
  const Encoded usual = Encode(of, x.data(), state, SerialFor, Isa::kBest);
  const float off = FarthestOff(Decode(of, usual, SerialFor, Isa::kBest), x,
                                dtype, 0, kRows * kChannels);
  of.coding.row_scales = true;
  const auto factor_of = [](int64_t row) {
    return row == 3 ? 64.0f : row == 70 ? 1 / 64.0f : 1.0f;
  };
  for (int64_t i = 0; i < kRows * kChannels; ++i) {
    const float v = LoadFloat(x.data(), dtype, i);
    StoreFloat(v * factor_of(i / kChannels), dtype, x.data(), i);
  }
  for (const Isa isa : AvailableIsas()) {
    const Encoded encoded = Encode(of, x.data(), state, Threads(2), isa);
    CHECK_EQ(encoded.state[kStreamBytes],
             static_cast<float>(of.coding.StreamBytes(of.dims)));
    const Buffer x_hat = Decode(of, encoded, Threads(2), isa);
    for (int64_t row = 0; row < kRows; ++row) {
      CHECK_MSG(FarthestOff(x_hat, x, dtype, row * kChannels, kChannels) <=
                    2.01f * off * factor_of(row),
                Name(of));
    }
  }
}

}  // namespace
}  // namespace comptrain

int main() {
  using namespace comptrain;
  TestScales();
  TestState();
  for (const DType dtype : kAllDTypes) {
    TestRows(dtype, false);
    TestRows(dtype, true);
  }
  for (const std::vector<int64_t>& dims : kShapes) {
    for (int bits = 2; bits <= 8; ++bits) {
      for (const bool mid_rise : {false, true}) {
        for (const DType dtype : kAllDTypes) {
          if (dtype != DType::kF32 && bits != 4) continue;
          TestOneResult({{bits, mid_rise}, dims, dtype});
          TestBound({{bits, mid_rise}, dims, dtype});
        }
      }
    }
  }
  return FinishTests();
}
