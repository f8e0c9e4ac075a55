// Speed of the element-wise codecs beside memcpy, one thread, medians.
//
//   g++ -std=c++17 -O3 -I. benchmarks/codec/kernels_bench.cc <codec objects>
//   -lpthread taskset -c 0 ./a.out
//
// GB/s counts the bytes an operation must read and write; memcpy (of the same
// number of bytes in all, half read and half written) is timed in between.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/codec/masks/bitmask.h"
#include "cc/codec/dropout/dropout.h"
#include "cc/codec/layers/activation.h"
#include "cc/codec/statistics/gradient_stats.h"
#include "cc/codec/common/half.h"
#include "cc/codec/common/parallel.h"
#include "cc/codec/masks/pool.h"

namespace comptrain {
namespace {

constexpr int kRepeats = 15;
constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
const char* const kNames[] = {"f32", "bf16", "f16"};

// Memory aligned as TensorFlow aligns its tensors, touched.
class Tensor {
 public:
  explicit Tensor(int64_t bytes)
      : data_(std::aligned_alloc(64, (bytes + 63) / 64 * 64), std::free) {
    std::memset(data_.get(), 0, bytes);
  }
  void* data() const { return data_.get(); }

 private:
  std::unique_ptr<void, void (*)(void*)> data_;
};

double Seconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - start;
  return taken.count();
}

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void Measure(const std::string& name, int64_t bytes,
             const std::function<void()>& run) {
  const Tensor from(bytes / 2), to(bytes / 2);
  run();
  std::vector<double> taken, copy;
  for (int i = 0; i < kRepeats; ++i) {
    taken.push_back(Seconds(run));
    copy.push_back(
        Seconds([&] { std::memcpy(to.data(), from.data(), bytes / 2); }));
  }
  const double median_s = Median(taken);
  std::printf("%-44s %9.3f %8.2f %8.2f\n", name.c_str(), median_s * 1e3,
              bytes / median_s / 1e9, bytes / Median(copy) / 1e9);
}

// Normal values, half of them negative.
Tensor RandomTensor(DType dtype, int64_t n) {
  Tensor data(n * ItemBytes(dtype));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < n; ++i) {
    StoreFloat(normal(random), dtype, data.data(), i);
  }
  return data;
}

void BenchElementwise(DType dtype, int64_t n) {
  const std::string suffix = std::string(" ") +
                             kNames[static_cast<int>(dtype)] + " " +
                             std::to_string(n);
  const int64_t bytes = n * ItemBytes(dtype);
  const Tensor x = RandomTensor(dtype, n), dx(bytes);
  std::vector<uint8_t> bits(BitmaskBytes(n));
  Measure("bitmask pack" + suffix, bytes + bits.size(), [&] {
    BitmaskPack({x.data(), dtype, n}, {0, 6}, bits.data(), SerialFor);
  });
  Measure("bitmask gradient 1/0" + suffix, 2 * bytes + bits.size(), [&] {
    BitmaskGradient(bits.data(), {1, 0}, {x.data(), dtype, n}, dx.data(),
                    SerialFor);
  });
  Measure("bitmask gradient 1/0.2" + suffix, 2 * bytes + bits.size(), [&] {
    BitmaskGradient(bits.data(), {1, 0.2f}, {x.data(), dtype, n}, dx.data(),
                    SerialFor);
  });
  Measure("bitmask gradient 1/0 in place" + suffix, 2 * bytes + bits.size(),
          [&] {
            BitmaskGradient(bits.data(), {1, 0}, {dx.data(), dtype, n},
                            dx.data(), SerialFor);
          });
  Measure("gradient stats" + suffix, bytes,
          [&] { MeasureGradient(x.data(), dtype, n, 64, SerialFor); });
  Measure("dropout" + suffix, 2 * bytes + bits.size(), [&] {
    Dropout({x.data(), dtype, n}, {0.1f, 1 / 0.9f, {1, {2, 3}}}, dx.data(),
            bits.data(), SerialFor);
  });
  Measure("gelu" + suffix, 2 * bytes, [&] {
    Activate(Activation::kGelu, x.data(), dtype, n, dx.data(), SerialFor);
  });
}

struct PoolCase {
  int64_t batch, size, channels, window;
};

// Stride 2; 3x3 windows padded as "SAME" pads them.
PoolShape Shape(const PoolCase& c) {
  PoolShape s;
  s.batch = c.batch;
  s.channels = c.channels;
  for (int d = 1; d < 3; ++d) {
    s.in_size[d] = c.size;
    s.out_size[d] = c.size / 2;
    s.window[d] = c.window;
    s.stride[d] = 2;
  }
  return s;
}

void BenchPool(DType dtype, const PoolCase& c) {
  const PoolShape s = Shape(c);
  const int64_t inputs = c.batch * c.size * c.size * c.channels;
  const int64_t item = ItemBytes(dtype);
  const Tensor x = RandomTensor(dtype, inputs), dx(inputs * item);
  const Tensor dy = RandomTensor(dtype, inputs / 4), y(inputs / 4 * item);
  std::vector<uint8_t> index(PoolIndexBytes(s));
  char shape[64];
  std::snprintf(shape, sizeof shape, " %s [%d,%d,%d,%d] %dx%d/2",
                kNames[static_cast<int>(dtype)], static_cast<int>(c.batch),
                static_cast<int>(c.size), static_cast<int>(c.size),
                static_cast<int>(c.channels), static_cast<int>(c.window),
                static_cast<int>(c.window));
  const int64_t bytes =
      inputs * item + inputs / 4 * item + static_cast<int64_t>(index.size());
  Measure(std::string("max pool") + shape, bytes, [&] {
    MaxPoolIndex(x.data(), dtype, s, y.data(), index.data(), SerialFor);
  });
  Measure(std::string("max pool gradient") + shape, bytes, [&] {
    MaxPoolGradient(index.data(), dtype, s, dy.data(), dx.data(), SerialFor);
  });
}

}  // namespace
}  // namespace comptrain

int main() {
  using namespace comptrain;
  std::printf("%-44s %9s %8s %8s\n", "op, dtype, shape", "ms", "GB/s",
              "memcpy");
  for (const DType dtype : kDTypes) BenchElementwise(dtype, 12'845'056);
  for (const DType dtype : kDTypes) {
    for (const PoolCase& c :
         {PoolCase{8, 112, 64, 3}, PoolCase{8, 112, 64, 2},
          PoolCase{64, 28, 32, 3}, PoolCase{64, 28, 32, 2}}) {
      BenchPool(dtype, c);
    }
  }
  return 0;
}
