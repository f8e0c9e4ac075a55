#include "cc/codec/masks/pool.h"

#include <cmath>
#include <string>
#include <vector>

#include "cc/codec/masks/pool_kernels.h"
#include "cc/codec/testing/data.h"
#include "cc/codec/testing/isas.h"
#include "cc/codec/testing/threads.h"

namespace comptrain {
namespace {

std::string Name(Isa isa) {
  return " isa " + std::to_string(static_cast<int>(isa));
}

int64_t Elements(const PoolShape& s, const int64_t size[3]) {
  return s.batch * size[0] * size[1] * size[2] * s.channels;
}

std::string Describe(const PoolShape& s, DType dtype) {
  std::string text = "batch " + std::to_string(s.batch) + " channels " +
                     std::to_string(s.channels) + " dtype " +
                     std::to_string(static_cast<int>(dtype)) +
                     " in/out/window/stride/pad";
  for (const auto* v :
       {s.in_size, s.out_size, s.window, s.stride, s.pad_before}) {
    for (int d = 0; d < 3; ++d) text += (d ? "," : " ") + std::to_string(v[d]);
  }
  return text;
}

// --- A slow implementation, element by element
// ---------------------------------

// Visits every output element and every input element under its window, in
// row-major order: visit(output, position, input), input -1 in the padding.
template <class F>
void ForWindows(const PoolShape& s, const F& visit) {
  const int64_t outputs = Elements(s, s.out_size);
  for (int64_t o = 0; o < outputs; ++o) {
    int64_t rest = o / s.channels, at[3];
    for (int d = 2; d >= 0; --d) {
      at[d] = rest % s.out_size[d];
      rest /= s.out_size[d];
    }
    int64_t position = 0;
    for (int64_t i = 0; i < s.window[0]; ++i) {
      for (int64_t j = 0; j < s.window[1]; ++j) {
        for (int64_t k = 0; k < s.window[2]; ++k, ++position) {
          const int64_t offset[3] = {i, j, k};
          int64_t input = rest;
          bool inside = true;
          for (int d = 0; d < 3; ++d) {
            const int64_t in =
                at[d] * s.stride[d] - s.pad_before[d] + offset[d];
            inside = inside && in >= 0 && in < s.in_size[d];
            input = input * s.in_size[d] + in;
          }
          visit(o, position, inside ? input * s.channels + o % s.channels : -1);
        }
      }
    }
  }
}

struct Maximum {
  int64_t input = -1;
  int64_t position = 0;
};

std::vector<Maximum> ReferenceMaxima(const Buffer& x, DType dtype,
                                     const PoolShape& s) {
  std::vector<Maximum> best(Elements(s, s.out_size));
  ForWindows(s, [&](int64_t output, int64_t position, int64_t input) {
    if (input < 0) return;
    Maximum& b = best[output];
    const float v = LoadFloat(x.data(), dtype, input);
    const float old = b.input < 0 ? 0 : LoadFloat(x.data(), dtype, b.input);
    const bool wins =
        b.input < 0 || v > old || (std::isnan(v) && !std::isnan(old));
    if (wins) b = {input, position};
  });
  return best;
}

unsigned ReadIndex(const Buffer& index, int bits, int64_t element) {
  unsigned value = 0;
  for (int b = 0; b < bits; ++b) {
    const int64_t bit = element * bits + b;
    value |= (index.data()[bit / 8] >> (bit % 8) & 1u) << b;
  }
  return value;
}

// The sums of dy by what `index` says, whatever it says.
std::vector<float> ReferenceGradient(const Buffer& index, DType dtype,
                                     const PoolShape& s, const Buffer& dy) {
  const int bits = PoolIndexBits(s);
  std::vector<float> sums(Elements(s, s.in_size));
  ForWindows(s, [&](int64_t output, int64_t position, int64_t input) {
    if (input < 0 || ReadIndex(index, bits, output) != position) return;
    sums[input] += LoadFloat(dy.data(), dtype, output);
  });
  return sums;
}

// --- Checks
// ----------------------------------------------------------------------

void CheckForward(const Buffer& x, DType dtype, const PoolShape& s,
                  const Buffer& y, const Buffer& index,
                  const std::string& which) {
  const int bits = PoolIndexBits(s);
  const std::vector<Maximum> expected = ReferenceMaxima(x, dtype, s);
  const int64_t n = expected.size();
  int64_t wrong_y = 0, wrong_index = 0;
  for (int64_t o = 0; o < n; ++o) {
    const Maximum& m = expected[o];
    const int64_t item = ItemBytes(dtype);
    if (m.input < 0) {
      wrong_y += LoadFloat(y.data(), dtype, o) != -INFINITY;
    } else {
      wrong_y += std::memcmp(y.data() + o * item, x.data() + m.input * item,
                             item) != 0;
    }
    wrong_index += ReadIndex(index, bits, o) != m.position;
  }
  CHECK_MSG(wrong_y == 0, which);
  CHECK_MSG(wrong_index == 0, which);
  for (int64_t bit = n * bits; bit < index.bytes() * 8; ++bit) {
    CHECK_MSG((index.data()[bit / 8] >> (bit % 8) & 1) == 0, which);
  }
}

void CheckBackward(const Buffer& index, DType dtype, const PoolShape& s,
                   const Buffer& dy, const Buffer& dx,
                   const std::string& which) {
  const std::vector<float> sums = ReferenceGradient(index, dtype, s, dy);
  int64_t wrong = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    uint8_t rounded[4];
    StoreFloat(sums[i], dtype, rounded, 0);
    wrong += !SameNumber(LoadFloat(dx.data(), dtype, i),
                         LoadFloat(rounded, dtype, 0));
  }
  CHECK_MSG(wrong == 0, which);
}

void TestForward(const PoolShape& s, DType dtype, int special) {
  const std::string which = Describe(s, dtype);
  const int64_t item = ItemBytes(dtype);
  Buffer x(Elements(s, s.in_size) * item, 4);
  FillRandom(3, dtype, Elements(s, s.in_size), special, x.data());
  Buffer first_y(Elements(s, s.out_size) * item);
  Buffer first(PoolIndexBytes(s));
  MaxPoolIndex(x.data(), dtype, s, first_y.data(), first.data(), SerialFor);
  CheckForward(x, dtype, s, first_y, first, which);
  for (const Isa isa : AvailableIsas()) {
    Buffer y(first_y.bytes(), 4), index(first.bytes(), 1);
    MaxPoolIndexWith({PoolKernelsOf(isa), dtype, s}, x.data(), y.data(),
                     index.data(), SerialFor);
    CHECK_MSG(y == first_y && index == first, which + Name(isa));
  }
  for (const ParallelFor& parallel : ParallelVariants()) {
    Buffer y(first_y.bytes()), index(first.bytes());
    MaxPoolIndex(x.data(), dtype, s, y.data(), index.data(), parallel);
    CHECK_MSG(y == first_y && index == first, which);
    Buffer alone(first.bytes());
    MaxPoolIndex(x.data(), dtype, s, nullptr, alone.data(), parallel);
    CHECK_MSG(alone == first, which);
  }
}

// damaged: an index of random bytes, as no forward pass would write.
void TestBackward(const PoolShape& s, DType dtype, int special, bool damaged) {
  const std::string which =
      Describe(s, dtype) + (damaged ? " damaged index" : "");
  const int64_t item = ItemBytes(dtype);
  const int64_t inputs = Elements(s, s.in_size);
  Buffer index(PoolIndexBytes(s), 1);
  std::mt19937 random(11);
  for (int64_t i = 0; i < index.bytes(); ++i) {
    index.data()[i] = static_cast<uint8_t>(random());
  }
  if (!damaged) {
    Buffer x(inputs * item);
    FillRandom(5, dtype, inputs, special, x.data());
    MaxPoolIndex(x.data(), dtype, s, nullptr, index.data(), SerialFor);
  }
  Buffer dy(Elements(s, s.out_size) * item, 4), first(inputs * item);
  FillRandom(13, dtype, Elements(s, s.out_size), special, dy.data());
  MaxPoolGradient(index.data(), dtype, s, dy.data(), first.data(), SerialFor);
  CheckBackward(index, dtype, s, dy, first, which);
  for (const Isa isa : AvailableIsas()) {
    Buffer dx(first.bytes(), 4);
    MaxPoolGradientWith({PoolKernelsOf(isa), dtype, s}, index.data(), dy.data(),
                        dx.data(), SerialFor);
    CheckBackward(index, dtype, s, dy, dx, which + Name(isa));
  }
  for (const ParallelFor& parallel : ParallelVariants()) {
    Buffer dx(first.bytes());
    MaxPoolGradient(index.data(), dtype, s, dy.data(), dx.data(), parallel);
    CHECK_MSG(dx == first, which);
  }
}

// --- Shapes
// ------------------------------------------------------------------------

struct Dimension {
  int64_t in, window, stride, pad, out;
};

// No padding: the windows that fit.
Dimension Valid(int64_t in, int64_t window, int64_t stride) {
  return {in, window, stride, 0, in < window ? 0 : (in - window) / stride + 1};
}

// ceil(in / stride) outputs, the padding split evenly, the odd one behind.
Dimension Same(int64_t in, int64_t window, int64_t stride) {
  const int64_t out = (in + stride - 1) / stride;
  const int64_t pad = std::max<int64_t>(0, (out - 1) * stride + window - in);
  return {in, window, stride, pad / 2, out};
}

PoolShape Make(int64_t batch, int64_t channels, std::vector<Dimension> dims) {
  PoolShape s;
  s.batch = batch;
  s.channels = channels;
  int d = 3 - static_cast<int>(dims.size());
  for (const Dimension& dim : dims) {
    s.in_size[d] = dim.in;
    s.out_size[d] = dim.out;
    s.window[d] = dim.window;
    s.stride[d] = dim.stride;
    s.pad_before[d++] = dim.pad;
  }
  return s;
}

std::vector<PoolShape> Shapes(int64_t batch, int64_t channels) {
  const auto make = [&](std::vector<Dimension> dims) {
    return Make(batch, channels, std::move(dims));
  };
  return {
      make({Valid(6, 2, 2), Valid(6, 2, 2)}),
      make({Valid(7, 2, 2), Valid(5, 2, 2)}),  // a last row under no window
      make({Same(7, 3, 2), Same(8, 3, 2)}),
      make({Valid(9, 3, 2), Valid(9, 3, 2)}),
      make({Same(5, 3, 1), Same(4, 3, 1)}),
      make({Same(2, 5, 1), Same(3, 5, 2)}),    // windows larger than the input
      make({Valid(9, 2, 3), Valid(8, 1, 3)}),  // stride > window
      make({Same(1, 1, 1), Same(1, 1, 1)}),
      make({Same(0, 2, 2), Same(4, 2, 2)}),
      make({Valid(2, 3, 2), Valid(5, 3, 2)}),  // no output
      make({Same(19, 2, 2)}),
      make({Same(23, 4, 3)}),
      make({Valid(40, 17, 5)}),
      make({Same(1, 1, 1), Valid(5, 5, 5), Valid(4, 4, 4)}),
      make({Same(4, 2, 2), Same(5, 3, 2), Same(6, 2, 2)}),
      make({Valid(5, 3, 1), Valid(4, 2, 2), Valid(5, 3, 2)}),
      make({Same(20, 17, 3), Same(18, 16, 9)}),  // 16-bit positions
      make({Valid(4, 4, 4), Valid(9, 8, 1), Valid(8, 8, 8)}),  // 256 positions
      make({{3, 2, 2, 4, 5}, {3, 2, 2, 2, 4}}),  // windows in the padding only
  };
}

void TestIndexBits() {
  const int64_t positions[] = {1, 2, 3, 4, 5, 16, 17, 256, 257, 65536};
  const int bits[] = {1, 1, 2, 2, 4, 4, 8, 8, 16, 16};
  for (int i = 0; i < 10; ++i) {
    const PoolShape s = Make(1, 3, {{9, positions[i], 1, 0, 3}});
    CHECK_EQ(PoolIndexBits(s), bits[i]);
    CHECK_EQ(PoolIndexBytes(s), (9 * bits[i] + 7) / 8);
  }
}

// By hand: ties, NaN, -0 and infinities in windows of three.
void TestKnownMaxima() {
  const float inf = INFINITY;
  const float x[] = {2,     5, 5,  NAN,  inf,  NAN,  0.0f, -0.0f, 0.0f,
                     -0.0f, 0, -1, -inf, -inf, -inf, 1,    NAN,   2};
  const int expected[] = {1, 0, 0, 0, 0, 1};
  const PoolShape s = Make(1, 1, {Valid(18, 3, 3)});
  float y[6];
  uint8_t index[2];
  MaxPoolIndex(x, DType::kF32, s, y, index, SerialFor);
  for (int i = 0; i < 6; ++i) {
    CHECK_EQ(index[i / 4] >> (i % 4 * 2) & 3, expected[i]);
  }
  CHECK(y[0] == 5 && std::isnan(y[1]) && std::isnan(y[5]) && y[4] == -inf);
  CHECK(!std::signbit(y[2]) && std::signbit(y[3]));
}

}  // namespace
}  // namespace comptrain

int main() {
  using namespace comptrain;
  TestIndexBits();
  TestKnownMaxima();
  for (const DType dtype : kAllDTypes) {
    for (const int64_t batch : {0, 1, 3}) {
      for (const int64_t channels : {0, 1, 3, 8, 16, 31, 33, 67}) {
        for (const PoolShape& s : Shapes(batch, channels)) {
          for (const int special : {0, 4}) {
            TestForward(s, dtype, special);
            TestBackward(s, dtype, special, false);
          }
          TestBackward(s, dtype, 0, true);
        }
      }
    }
    // Several units of work, cut inside a row of the input and of the output.
    const PoolShape wide = Make(1, 5, {Same(9001, 3, 2)});
    TestForward(wide, dtype, 4);
    TestBackward(wide, dtype, 4, false);
    const PoolShape deep = Make(1, 20003, {Same(5, 3, 2)});
    TestForward(deep, dtype, 4);
    TestBackward(deep, dtype, 4, false);
  }
  return FinishTests();
}
