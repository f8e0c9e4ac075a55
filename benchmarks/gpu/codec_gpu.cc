// Codec A on a GPU against the CPU's bytes, and its speed. Needs a GPU, nothing
// of TensorFlow; tools/build_native.py gpu builds and runs it.
//
//   codec_gpu [random shapes, default 200] [MB of the speeds, default 16 64 256; 0: none]
//
// Prints `N passed, N failed`, then a table. Ends with a status other than 0 when
// a check failed, with 77 when there is no GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/codec/plane_gpu.h"
#include "cc/codec/plane_test_util.h"
#include "cc/codec/test_data.h"

namespace comptrain {
namespace {

void Require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CUDA(call) Require((call), #call)

bool Ok(const Status& s) { return CHECK_MSG(s.ok(), s.message); }

// Device memory of exactly the size asked for, filled with a pattern.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) : bytes_(bytes) {
    CUDA(cudaMalloc(&data_, std::max<size_t>(bytes, 16)));
    CUDA(cudaMemset(data_, 0xff, std::max<size_t>(bytes, 16)));
  }
  explicit DeviceBytes(const Bytes& from) : DeviceBytes(from.size()) {
    CUDA(cudaMemcpy(data_, from.data(), from.size(), cudaMemcpyHostToDevice));
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void* data() const { return data_; }
  Bytes Read() const {
    Bytes to(bytes_);
    CUDA(cudaMemcpy(to.data(), data_, bytes_, cudaMemcpyDeviceToHost));
    return to;
  }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

struct Totals {
  PlaneGpuTotals* host;
  Totals() { CUDA(cudaHostAlloc(&host, sizeof *host, cudaHostAllocMapped)); }
  ~Totals() { cudaFreeHost(host); }
};

uint32_t ReadDamaged(const DeviceBytes& flag) {
  uint32_t value;
  CUDA(cudaMemcpy(&value, flag.data(), 4, cudaMemcpyDeviceToHost));
  return value;
}

std::string Text(const PlaneParams& p) {
  return "dtype " + std::to_string(static_cast<int>(p.dtype)) + ", n " +
         std::to_string(p.n) + ", channels " + std::to_string(p.channels) +
         ", eb " + std::to_string(p.eb) + (p.mid_rise ? ", mid-rise" : "") +
         (p.dither ? ", dither" : "");
}

void TestOne(const Bytes& x, const PlaneParams& p, std::mt19937* random) {
  const std::string what = Text(p);
  const Encoded cpu = EncodePlane(x, p, Isa::kBest);
  const DeviceBytes x_dev(x), scratch(PlaneGpuScratchBytes(p));
  Totals totals;
  if (!Ok(PlaneGpuMeasure(p, x_dev.data(), scratch.data(), totals.host,
                          nullptr))) {
    return;
  }
  CUDA(cudaDeviceSynchronize());
  const size_t bytes = PlaneGpuBytes(p, *totals.host);
  if (!CHECK_MSG(bytes == cpu.stream.size(), what)) return;
  CHECK_MSG(static_cast<int64_t>(totals.host->nonzero) == cpu.stats.nonzero,
            what);
  CHECK_MSG(std::fabs(totals.host->sum_sq - cpu.stats.sum_sq) <=
                1e-5 * std::fabs(cpu.stats.sum_sq),
            what);
  const DeviceBytes stream(bytes);
  if (!Ok(PlaneGpuWrite(p, x_dev.data(), scratch.data(), *totals.host,
                        stream.data(), nullptr))) {
    return;
  }
  CHECK_MSG(stream.Read() == cpu.stream, what);

  Bytes expected(x.size());
  PlaneDecode(cpu.stream.data(), cpu.stream.size(), p.dtype, p.n,
              expected.data(), SerialFor);
  const DeviceBytes out(x.size()), flag(Bytes(4, 0));
  auto* damaged = static_cast<uint32_t*>(flag.data());
  Ok(PlaneGpuDecode(stream.data(), bytes, p.dtype, p.n, p.channels, out.data(),
                    damaged, nullptr));
  CHECK_MSG(out.Read() == expected, what);
  CHECK_MSG(ReadDamaged(flag) == 0, what);
  if (p.mid_rise || p.dither) {
    PlaneMaskGradient(cpu.stream.data(), cpu.stream.size(), p.dtype, p.n,
                      x.data(), expected.data(), SerialFor);
    Ok(PlaneGpuMaskGradient(stream.data(), bytes, p.dtype, p.n, p.channels,
                            x_dev.data(), out.data(), damaged, nullptr));
    CHECK_MSG(out.Read() == expected, what);
  }

  // Damage: an error, or some values; compute-sanitizer watches the accesses.
  Bytes broken = cpu.stream;
  for (int i = 0; i < 4 && !broken.empty(); ++i) {
    broken[(*random)() % broken.size()] ^= 1 << (*random)() % 8;
  }
  const DeviceBytes broken_dev(broken);
  Ok(PlaneGpuDecode(broken_dev.data(), bytes, p.dtype, p.n, p.channels,
                    out.data(), damaged, nullptr));
  const Status on_cpu =
      PlaneDecode(broken.data(), broken.size(), p.dtype, p.n, expected.data(),
                  SerialFor);
  CUDA(cudaDeviceSynchronize());
  if (on_cpu.ok()) CHECK_MSG(out.Read() == expected, "damaged, " + what);
}

// ReLU outputs or normalized values, in runs as images have them.
std::vector<float> Activations(int64_t n, bool relu, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (auto& v : x) {
    v = normal(random);
    if (relu) v = std::max(v, 0.0f);
  }
  return x;
}

void TestShapes(int count) {
  std::mt19937 random(7);
  const int64_t sizes[] = {0, 1, 31, 32, 33, 1023, 1024, 1025, 4096, 65536 + 7};
  const int64_t channels[] = {1, 3, 31, 32, 64, 96, 100, 256};
  for (int i = 0; i < count; ++i) {
    PlaneParams p;
    p.dtype = kAllDTypes[random() % 3];
    p.channels = channels[random() % 8];
    const int64_t pixels = random() % 2 ? sizes[random() % 10] : random() % 5000;
    p.n = pixels * p.channels;
    const float bounds[] = {1e-6f, 1e-3f, 0.01f, 0.1f, 1.0f, 1e4f};
    p.eb = bounds[random() % 6];
    const int coding = random() % 3;
    p.mid_rise = coding == 1;
    p.dither = coding == 2;
    Bytes x;
    if (random() % 3 == 0) {
      x.resize(p.n * ItemBytes(p.dtype));
      FillRandom(random(), p.dtype, p.n, random() % 2 ? 50 : 0, x.data());
    } else {
      x = ToTensor(Activations(p.n, random() % 2, random()), p.dtype);
    }
    TestOne(x, p, &random);
  }
}

// Best of several runs, in seconds.
template <class Run>
double Seconds(const Run& run) {
  cudaEvent_t begin, end;
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    CUDA(cudaEventRecord(begin));
    run();
    CUDA(cudaEventRecord(end));
    CUDA(cudaEventSynchronize(end));
    float ms;
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    best = std::min(best, ms / 1e3);
  }
  CUDA(cudaEventDestroy(begin));
  CUDA(cudaEventDestroy(end));
  return best;
}

void Speeds(int mb) {
  for (const bool relu : {true, false}) {
    PlaneParams p;
    p.n = int64_t{mb} * (1 << 20) / 4;
    p.channels = 64;
    p.mid_rise = relu;
    const std::vector<float> values = Activations(p.n, relu, 1);
    p.eb = relu ? 0.058f : 0.1f;  // a tenth of the standard deviation
    const DeviceBytes x(ToTensor(values, p.dtype)), copy(4 * p.n);
    const DeviceBytes scratch(PlaneGpuScratchBytes(p)), flag(Bytes(4, 0));
    Totals totals;
    auto measure = [&] {
      Ok(PlaneGpuMeasure(p, x.data(), scratch.data(), totals.host, nullptr));
    };
    measure();
    CUDA(cudaDeviceSynchronize());
    const DeviceBytes stream(PlaneGpuBytes(p, *totals.host));
    auto write = [&] {
      Ok(PlaneGpuWrite(p, x.data(), scratch.data(), *totals.host,
                       stream.data(), nullptr));
    };
    write();
    const double compress_s = Seconds([&] { measure(); write(); });
    double op_s = 1e9;  // with the read-back that an op waits for
    for (int i = 0; i < 20; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      measure();
      CUDA(cudaStreamSynchronize(nullptr));
      write();
      CUDA(cudaStreamSynchronize(nullptr));
      const std::chrono::duration<double> s =
          std::chrono::steady_clock::now() - begin;
      op_s = std::min(op_s, s.count());
    }
    const double decompress_s = Seconds([&] {
      Ok(PlaneGpuDecode(stream.data(), PlaneGpuBytes(p, *totals.host), p.dtype,
                        p.n, p.channels, copy.data(),
                        static_cast<uint32_t*>(flag.data()), nullptr));
    });
    const double copy_s = Seconds([&] {
      CUDA(cudaMemcpyAsync(copy.data(), x.data(), 4 * p.n,
                           cudaMemcpyDeviceToDevice));
    });
    const double gb = 4e-9 * p.n;
    std::printf("| plane | %s | %d | %.2f | %.0f | %.0f | %.0f | %.0f |\n",
                relu ? "ReLU" : "normal", mb,
                4.0 * p.n / PlaneGpuBytes(p, *totals.host), gb / compress_s,
                gb / op_s, gb / decompress_s, gb / copy_s);
  }
}

}  // namespace
}  // namespace comptrain

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: there is no GPU here\n");
    return 77;
  }
  cudaDeviceProp properties;
  comptrain::Require(cudaGetDeviceProperties(&properties, 0), "properties");
  comptrain::TestShapes(argc > 1 ? std::atoi(argv[1]) : 200);
  const int status = comptrain::FinishTests();
  std::vector<int> sizes = {16, 64, 256};
  if (argc > 2) sizes.clear();
  for (int i = 2; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes == std::vector<int>{0}) return status;
  std::printf("\n%s; GB/s of uncompressed f32, best of 20\n\n", properties.name);
  std::printf("| codec | data | MB | ratio | compress | with read-back | "
              "decompress | device copy |\n|---|---|---|---|---|---|---|---|\n");
  for (int mb : sizes) comptrain::Speeds(mb);
  return status;
}
