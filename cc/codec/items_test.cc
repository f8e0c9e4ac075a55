// The GPU's functions of an item, run here item by item, against the CPU's.
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cc/codec/batch_norm.h"
#include "cc/codec/bitmask.h"
#include "cc/codec/gradient_stats.h"
#include "cc/codec/items.h"
#include "cc/codec/codec_test_util.h"
#include "cc/codec/test_data.h"

namespace comptrain {
namespace {

template <class F>
void ForItems(int64_t n, const F& f) {
  for (int64_t i = 0; i < n; ++i) f(i);
}

// As in items_gpu.cu.
template <class Sum>
Sum* Reduce(std::vector<Sum>* sums, int64_t rows, int64_t columns) {
  Sum* from = sums->data();
  sums->resize(columns * (rows + (rows + kReduceRows - 1) / kReduceRows));
  from = sums->data();
  Sum* to = from + rows * columns;
  while (rows > 1) {
    const int64_t fewer = (rows + kReduceRows - 1) / kReduceRows;
    ForItems(fewer * columns, ReduceRows<Sum>{from, rows, columns, to});
    std::swap(from, to);
    rows = fewer;
  }
  return from;
}

bool Near(double a, double b, double relative) {
  return std::fabs(a - b) <= relative * std::fmax(std::fabs(a), 1e-3);
}

template <class T>
void TestBits(DType dtype, int64_t n) {
  Buffer x(n * sizeof(T)), expected(BitmaskBytes(n)), bits(BitmaskBytes(n));
  Buffer want(n * sizeof(T)), dx(n * sizeof(T));
  FillRandom(static_cast<uint32_t>(n), dtype, n, 10, x.data());
  BitmaskPack(x.data(), dtype, n, 0.0f, 6.0f, expected.data(), SerialFor);
  const T* values = reinterpret_cast<const T*>(x.data());
  ForItems(BitmaskBytes(n), PackBits<T>{values, n, 0.0f, 6.0f, bits.data()});
  CHECK_MSG(bits == expected, std::to_string(n));
  for (float off : {0.0f, 0.25f}) {
    BitmaskGradient(bits.data(), dtype, n, 1.5f, off, x.data(), want.data(),
                    SerialFor);
    ForItems(n, ApplyBits<T>{bits.data(), 1.5f, off, values,
                             reinterpret_cast<T*>(dx.data())});
    CHECK_MSG(dx == want, std::to_string(n));
  }
}

template <class T>
void TestPool(DType dtype, const PoolShape& s, const std::string& what) {
  const int bits = PoolIndexBits(s);
  int64_t in = s.batch * s.channels, out = in;
  for (int d = 0; d < 3; ++d) {
    in *= s.in_size[d];
    out *= s.out_size[d];
  }
  Buffer x(in * sizeof(T)), y(out * sizeof(T)), want_y(out * sizeof(T));
  Buffer index(PoolIndexBytes(s)), want_index(PoolIndexBytes(s));
  FillRandom(5, dtype, in, 20, x.data());
  MaxPoolIndex(x.data(), dtype, s, want_y.data(), want_index.data(), SerialFor);
  ForItems(bits == 16 ? out : PoolIndexBytes(s),
           PoolMaxima<T>{s, bits, out, reinterpret_cast<const T*>(x.data()),
                         reinterpret_cast<T*>(y.data()), index.data()});
  CHECK_MSG(index == want_index, what);
  CHECK_MSG(y == want_y, what);
  Buffer dx(in * sizeof(T)), want(in * sizeof(T));
  MaxPoolGradient(index.data(), dtype, s, y.data(), want.data(), SerialFor);
  ForItems(in, PoolScatter<T>{s, bits, index.data(),
                              reinterpret_cast<const T*>(y.data()),
                              reinterpret_cast<T*>(dx.data())});
  // A NaN that two windows share is one in the sum, whatever its bits.
  bool same = true;
  for (int64_t i = 0; i < in; ++i) {
    same = same && SameNumber(LoadFloat(dx.data(), dtype, i),
                              LoadFloat(want.data(), dtype, i));
  }
  CHECK_MSG(same, what);
}

template <class T>
void TestPools(DType dtype) {
  struct Case {
    int64_t window[3], stride[3], in[3], out[3], pad[3];
  };
  const Case cases[] = {
      {{1, 1, 2}, {1, 1, 2}, {1, 1, 9}, {1, 1, 4}, {0, 0, 0}},     // 1 bit
      {{1, 2, 2}, {1, 2, 2}, {1, 8, 6}, {1, 4, 3}, {0, 0, 0}},     // 2 bits
      {{1, 3, 3}, {1, 2, 2}, {1, 9, 7}, {1, 5, 4}, {0, 1, 1}},     // 4, overlap
      {{2, 3, 3}, {1, 1, 1}, {4, 5, 6}, {4, 5, 6}, {0, 1, 1}},     // 8, 3-D
      {{1, 17, 17}, {1, 5, 5}, {1, 20, 20}, {1, 4, 4}, {0, 6, 6}}, // 16 bits
      {{1, 1, 1}, {1, 3, 3}, {1, 7, 7}, {1, 3, 3}, {0, 0, 0}},     // gaps
  };
  for (const Case& c : cases) {
    for (int64_t channels : {1, 3, 32}) {
      PoolShape s;
      s.batch = 2;
      s.channels = channels;
      for (int d = 0; d < 3; ++d) {
        s.window[d] = c.window[d];
        s.stride[d] = c.stride[d];
        s.in_size[d] = c.in[d];
        s.out_size[d] = c.out[d];
        s.pad_before[d] = c.pad[d];
      }
      TestPool<T>(dtype, s, "window " + std::to_string(c.window[1]) + "x" +
                                std::to_string(c.window[2]) + ", channels " +
                                std::to_string(channels));
    }
  }
}

template <class T>
void TestSummary(DType dtype, int64_t n, int64_t channels) {
  Buffer x(n * sizeof(T));
  FillRandom(9, dtype, n, 50, x.data());
  // Squares that a double holds exactly enough.
  for (int64_t i = 0; i < n; ++i) {
    const float v = LoadFloat(x.data(), dtype, i);
    if (std::fabs(v) > 1e6f) StoreFloat(NAN, dtype, x.data(), i);
  }
  const int64_t items = n < kSummaryItems ? n : kSummaryItems;
  std::vector<Summary> sums(items);
  ForItems(items, Summarize<T>{reinterpret_cast<const T*>(x.data()), n,
                               sums.data()});
  const Summary* total = Reduce(&sums, items, 1);
  float stats[3];
  FinishGradientStats{total, channels, stats}(0);
  const GradientStats want =
      MeasureGradient(x.data(), dtype, n, channels, SerialFor);
  CHECK(Near(stats[0], want.mean_channel_sum_sq, 1e-5));
  CHECK(Near(stats[1], want.mean_abs, 1e-5));
  CHECK_EQ(static_cast<int64_t>(stats[2]), want.nonfinite);
  CHECK_EQ(static_cast<double>(total->high) - total->low,
           ValueRange(x.data(), dtype, n, SerialFor));
  CHECK_EQ(total->finite + total->nonfinite, static_cast<double>(n));
}

void TestBatchNorm(int64_t rows, int64_t channels) {
  const int64_t n = rows * channels;
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0.3f, 1.0f);
  std::vector<float> x(n), dy(n), gamma(channels), mean(channels), inv(channels);
  for (auto* v : {&x, &dy, &gamma, &mean, &inv}) {
    for (auto& e : *v) e = normal(random);
  }
  const EncodeParams p = Params(DType::kF32, n, channels, 1e-4f, false);
  const Bytes stream = EncodeWith(CodecId::kPlane, ToTensor(x, DType::kF32), p);
  PlaneDecode(stream.data(), stream.size(), DType::kF32, n, x.data(), SerialFor);
  std::vector<float> want(n), want_gamma(channels), want_beta(channels);
  CHECK(BatchNormGradient(stream.data(), stream.size(), DType::kF32, n, dy.data(),
                          {channels, gamma.data(), mean.data(), inv.data()},
                          want.data(), want_gamma.data(), want_beta.data(),
                          SerialFor)
            .ok());

  const int64_t sum_rows = (rows + kBatchNormRows - 1) / kBatchNormRows;
  std::vector<BatchNormSum> sums(sum_rows * channels);
  std::vector<float> dgamma(channels), dbeta(channels), coefficients(3 * channels);
  ForItems(sum_rows * channels,
           SumBatchNorm<float>{x.data(), dy.data(), rows, channels, mean.data(),
                               sums.data()});
  const BatchNormSum* total = Reduce(&sums, sum_rows, channels);
  ForItems(channels, FinishBatchNorm{total, gamma.data(), inv.data(), rows,
                                     channels, dgamma.data(), dbeta.data(),
                                     coefficients.data()});
  ForItems(n, BatchNormDx<float>{x.data(), dy.data(), channels, mean.data(),
                                 coefficients.data(), dy.data()});
  bool near = true;
  for (int64_t c = 0; c < channels; ++c) {
    near = near && std::fabs(dgamma[c] - want_gamma[c]) < 1e-4 * rows &&
           std::fabs(dbeta[c] - want_beta[c]) < 1e-4 * rows;
  }
  CHECK(near);
  near = true;
  for (int64_t i = 0; i < n; ++i) near = near && std::fabs(dy[i] - want[i]) < 1e-4;
  CHECK_MSG(near, std::to_string(rows) + " x " + std::to_string(channels));
}

template <class T>
void TestType(DType dtype) {
  for (int64_t n : {1, 7, 8, 9, 1000}) TestBits<T>(dtype, n);
  TestPools<T>(dtype);
  TestSummary<T>(dtype, 960, 3);
  TestSummary<T>(dtype, kSummaryItems * 2 + 64, 64);
}

}  // namespace
}  // namespace comptrain

int main() {
  using namespace comptrain;
  TestType<float>(DType::kF32);
  TestType<BF16>(DType::kBF16);
  TestType<F16>(DType::kF16);
  TestBatchNorm(1, 32);
  TestBatchNorm(129, 7);
  TestBatchNorm(9000, 64);
  return FinishTests();
}
