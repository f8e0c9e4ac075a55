// Which rows of a tensor have a scale of their own, and where a stream has it.
#include "cc/codec/stream/row_scales.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cc/codec/registry/codec.h"
#include "cc/codec/testing/codecs.h"
#include "cc/codec/testing/threads.h"

namespace comptrain {
namespace {

constexpr int64_t kRows = 40, kChannels = 70;

// Normal values; rows times factor.
std::vector<float> Tensor(const std::vector<float>& factors) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t c = 0; c < kChannels; ++c) {
      x.push_back(normal(random) * factors[row]);
    }
  }
  return x;
}

void TestWhichRows() {
  std::vector<float> factors(kRows, 0.03f);
  factors[1] = 0;
  factors[2] = 0.03f * 1024;
  factors[3] = 0.03f / 1024;
  factors[4] = 0.03f * 1.5f;
  factors[5] = 1e9f;
  factors[6] = NAN;
  const std::vector<float> x = Tensor(factors);
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kF16) continue;  // 1e9
    const Bytes bytes = ToTensor(x, dtype);
    std::vector<int8_t> scales(kRows);
    for (const ParallelFor& parallel : ParallelVariants()) {
      CHECK(FindRowScales({bytes.data(), dtype, kRows, kChannels}, parallel,
                          scales.data()));
      CHECK_EQ(int{scales[2]} - scales[3], 20);
      CHECK(scales[5] > 25);
      CHECK_EQ(scales[1], kZeroRow);
      for (const int row : {0, 4, 6, 7, 39}) CHECK_EQ(int{scales[row]}, 0);
    }
  }
  const std::vector<float> even = Tensor(std::vector<float>(kRows, 7));
  std::vector<int8_t> scales(kRows, 1);
  CHECK(!FindRowScales({even.data(), DType::kF32, kRows, kChannels}, SerialFor,
                       scales.data()));
  for (const int8_t scale : scales) CHECK_EQ(int{scale}, 0);
}

// A channel that is larger than the others says nothing of rows.
void TestChannels() {
  std::vector<float> x = Tensor(std::vector<float>(kRows, 1));
  for (int64_t row = 0; row < kRows; ++row) x[row * kChannels + 9] *= 1000;
  std::vector<int8_t> scales(kRows);
  CHECK(!FindRowScales({x.data(), DType::kF32, kRows, kChannels}, SerialFor,
                       scales.data()));
}

// All that is divided is multiplied by the same, a part or the whole.
void TestThereAndBack() {
  std::vector<int8_t> scales(kRows, 0);
  scales[0] = 3;
  scales[7] = -60;
  scales[9] = kZeroRow;
  const std::vector<float> x = Tensor(std::vector<float>(kRows, 1));
  const RowScales rows(kChannels, scales.data());
  const RowsOfTensor of = {x.data(), DType::kF32, kRows, kChannels};
  std::vector<float> all(x.size()), part = x;
  rows.DivideAll(of, Threads(2), all.data());
  CHECK_EQ(all[0], x[0] / 8);
  CHECK_EQ(all[7 * kChannels], std::ldexp(x[7 * kChannels], 60));
  CHECK_EQ(all[8 * kChannels], x[8 * kChannels]);
  rows.Divide(60, 500, part.data() + 60);
  CHECK(part[59] == x[59] && part[560] == x[560]);
  CHECK(std::equal(part.begin() + 60, part.begin() + 560, all.begin() + 60));
  CHECK(rows.Any(60, 500) && !rows.Any(kChannels, 6 * kChannels));
  CHECK(!RowScales(kChannels, nullptr).Any(0, 500));
  rows.MultiplyAll({all.data(), DType::kF32, kRows, kChannels}, Threads(2),
                   all.data());
  for (int64_t i = 0; i < kRows * kChannels; ++i) {
    CHECK_EQ(all[i], i / kChannels == 9 ? 0 : x[i]);
  }
}

void TestErrors() {
  const std::vector<int8_t> scales = {0, 3, kZeroRow, 0};
  CHECK_EQ(RmsOfRowScales(scales.data(), 4), std::sqrt((1 + 64 + 0 + 1) / 4.0));
  CHECK_EQ(RmsOfRowScales(nullptr, 0), 1.0);
}

// What is not zero stays so: the mask of a ReLU's output is read from streams.
void TestNothingBecomesZero() {
  const std::vector<float> x = {1e-6f, -1e-6f, 0, 1};
  const std::vector<int8_t> scales = {20};
  const Bytes bytes = ToTensor(x, DType::kF16);
  Bytes divided(bytes.size());
  RowScales(4, scales.data())
      .DivideAll({bytes.data(), DType::kF16, 1, 4}, SerialFor, divided.data());
  CHECK(LoadFloat(divided.data(), DType::kF16, 0) == 0x1p-24f);
  CHECK(LoadFloat(divided.data(), DType::kF16, 1) == -0x1p-24f);
  CHECK(LoadFloat(divided.data(), DType::kF16, 2) == 0);
  CHECK(LoadFloat(divided.data(), DType::kF16, 3) == 0x1p-20f);
}

void TestBehindAStream() {
  const std::vector<float> x = Tensor(std::vector<float>(kRows, 1));
  const EncodeParams params =
      ParamsOf(DType::kF32, kRows * kChannels, kChannels, 0.1f, Coding::kPlain);
  const auto encoder = MakeEncoder(CodecId::kPlane, params);
  CHECK(encoder->Encode(x.data(), nullptr, 0, SerialFor).ok());
  const size_t own = encoder->total_bytes();
  std::vector<uint8_t> stream(own + kRows, 5);
  CHECK(encoder->Write(stream.data(), SerialFor).ok());
  const auto n = static_cast<int64_t>(x.size());
  StreamIn with = {stream.data(), stream.size(), DType::kF32, n};
  const int8_t* const scales = TakeRowScales(kRows, &with);
  CHECK(scales != nullptr && scales[0] == 5 && scales[kRows - 1] == 5);
  CHECK_EQ(with.bytes, own);
  for (const size_t bytes : {size_t{0}, size_t{10}, own - 1, own, own + 1}) {
    StreamIn other = {stream.data(), bytes, DType::kF32, n};
    CHECK(TakeRowScales(kRows, &other) == nullptr);
    CHECK_EQ(other.bytes, bytes);
  }
}

}  // namespace
}  // namespace comptrain

int main() {
  comptrain::TestWhichRows();
  comptrain::TestChannels();
  comptrain::TestThereAndBack();
  comptrain::TestNothingBecomesZero();
  comptrain::TestErrors();
  comptrain::TestBehindAStream();
  return comptrain::FinishTests();
}
