// Ratio and speed of plane, rans and zvc on one core.
//
//   codec_bench [--eb-sigma 0.1] [--no-mid-rise] [--dither]
//               [--dtype f32|bf16|f16] [--repeats 9] [--cpu-time]
//               [--codec plane|rans|zvc] [file.bin ...]
//
// Each file is what dump_activations.py writes: a line with the shape, then
// float32 values. Without files, normal values of which those below 0 are set
// to 0, and for zvc as many zeros as density says. GB/s are bytes of the
// uncompressed tensor over the median time; with --cpu-time, time in which the
// thread ran (for a machine shared with others). The last column is memcpy
// between the same buffers.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "cc/codec/common/half.h"
#include "cc/codec/plane/plane.h"
#include "cc/codec/rans/rans.h"
#include "cc/codec/registry/codec.h"
#include "cc/codec/stream/scales.h"
#include "cc/codec/zvc/zvc.h"

namespace {

using comptrain::CodecId;
using comptrain::DType;
using comptrain::Isa;
using comptrain::SerialFor;

struct Options {
  double eb_sigma = 0.1;
  bool mid_rise = true, dither = false;
  DType dtype = DType::kF32;
  int repeats = 9;
  clockid_t clock = CLOCK_MONOTONIC;
  std::vector<std::string> codecs = {"plane", "rans", "zvc"};
  std::vector<std::string> files;
};

struct Tensor {
  std::string name;
  int64_t channels = 1;
  int64_t width = 0;  // of an image; 0: none
  std::vector<float> values;
};

Tensor ReadTensor(const std::string& path) {
  Tensor t;
  t.name = path.substr(path.find_last_of('/') + 1);
  std::ifstream in(path, std::ios::binary);
  std::string shape;
  std::getline(in, shape);
  std::istringstream sizes(shape);
  int64_t n = 1, size, dimensions = 0;
  while (sizes >> size) {
    n *= size;
    t.width = ++dimensions >= 4 ? t.channels : 0;
    t.channels = size;
  }
  if (!in || n <= 0) {
    std::fprintf(stderr, "%s: the first line must be a shape\n", path.c_str());
    std::exit(2);
  }
  t.values.resize(n);
  in.read(reinterpret_cast<char*>(t.values.data()), n * 4);
  if (in.gcount() != n * 4) {
    std::fprintf(stderr, "%s: %lld values expected, file is shorter\n",
                 path.c_str(), static_cast<long long>(n));
    std::exit(2);
  }
  return t;
}

// density: of non-zeros; 0: what ReLU leaves.
Tensor GenerateTensor(int64_t pixels, int64_t channels, double density = 0) {
  Tensor t;
  t.name = density > 0 ? "density " + std::to_string(density).substr(0, 4)
                       : "relu(N(0,1)) [" + std::to_string(pixels) + "," +
                             std::to_string(channels) + "]";
  t.channels = channels;
  t.values.resize(pixels * channels);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& v : t.values) {
    v = normal(random);
    const bool zero = density > 0 ? random() * 0x1p-32 >= density : v < 0;
    if (zero) v = 0;
  }
  return t;
}

double Now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Aligned as TensorFlow's tensors are, and touched.
class Buffer {
 public:
  explicit Buffer(size_t bytes)
      : bytes_((bytes + 63) / 64 * 64),
        data_(static_cast<uint8_t*>(std::aligned_alloc(64, bytes_))) {
    std::memset(data_, 1, bytes_);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }
  uint8_t* data() { return data_; }
  size_t size() const { return bytes_; }

 private:
  size_t bytes_;
  uint8_t* data_;
};

template <class F>
double MedianSeconds(const Options& o, const F& f) {
  std::vector<double> seconds;
  for (int i = 0; i < o.repeats; ++i) {
    const double start = Now(o.clock);
    f();
    seconds.push_back(Now(o.clock) - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + o.repeats / 2,
                   seconds.end());
  return seconds[o.repeats / 2];
}

void Require(const comptrain::Status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "%s\n", s.message.c_str());
  std::exit(1);
}

void Measure(const Tensor& t, const Options& o, const std::string& name) {
  const int64_t n = static_cast<int64_t>(t.values.size());
  const size_t bytes = n * comptrain::ItemBytes(o.dtype);
  Buffer x(bytes), y(bytes), dx(bytes);
  for (int64_t i = 0; i < n; ++i) {
    comptrain::StoreFloat(t.values[i], o.dtype, x.data(), i);
  }
  CodecId codec{};
  if (!comptrain::CodecFromName(name, &codec)) {
    std::fprintf(stderr, "no codec is named %s\n", name.c_str());
    std::exit(2);
  }
  comptrain::EncodeParams params;
  params.width = t.width;
  params.dtype = o.dtype;
  params.n = n;
  params.channels = t.channels;
  const auto sample = [&] {
    return comptrain::SampleChannels(x.data(), o.dtype, n, t.channels,
                                     SerialFor);
  };
  params.eb = static_cast<float>(o.eb_sigma * sample().sigma);
  params.mid_rise = o.mid_rise;
  params.dither = o.dither;
  const bool mask_kept = o.mid_rise || o.dither || comptrain::IsLossless(codec);
  Buffer scratch(comptrain::MakeEncoder(codec, params)->scratch_bytes() + 1);
  Buffer stream(std::max({comptrain::PlaneMaxBytes(n, t.channels, o.dtype),
                          comptrain::RansMaxBytes(n, t.channels, o.dtype),
                          comptrain::ZvcMaxBytes(n, o.dtype)}));
  const double copy =
      MedianSeconds(o, [&] { std::memcpy(y.data(), x.data(), bytes); });
  const double gb = bytes / 1e9;
  const struct {
    Isa isa;
    const char* name;
  } sets[] = {{Isa::kScalar, "scalar"},
              {Isa::kAvx2, "AVX2"},
              {Isa::kAvx512, "AVX-512"}};
  for (const auto& set : sets) {
    if (!comptrain::IsaAvailable(set.isa)) continue;
    size_t total = 0;
    // With what an op does before it: channels get their scales.
    const double compress = MedianSeconds(o, [&] {
      const comptrain::OwnScales own(sample(), params);
      comptrain::EncodeParams scaled = params;
      scaled.scales = own.scales();
      const auto encoder = comptrain::MakeEncoder(codec, scaled, set.isa);
      Require(
          encoder->Encode(x.data(), scratch.data(), scratch.size(), SerialFor));
      total = encoder->total_bytes();
      Require(encoder->Write(stream.data(), SerialFor));
    });
    const double decompress = MedianSeconds(o, [&] {
      Require(comptrain::DecodeStream({stream.data(), total, o.dtype, n},
                                      y.data(), SerialFor, set.isa));
    });
    const double mask = !mask_kept ? 0 : MedianSeconds(o, [&] {
      Require(comptrain::StreamMaskGradient({stream.data(), total, o.dtype, n},
                                            y.data(), dx.data(), SerialFor,
                                            set.isa));
    });
    std::printf("%-28s %7.1f  %-5s %-7s %6.2f %6.2f %8.2f %10.2f %8.2f %7.2f\n",
                t.name.c_str(), bytes / 1e6, name.c_str(), set.name,
                static_cast<double>(bytes) / total, 8.0 * total / n,
                gb / compress, gb / decompress, mask > 0 ? gb / mask : 0.0,
                gb / copy);
  }
}

Options Parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (a == "--eb-sigma") {
      o.eb_sigma = std::atof(value.c_str());
      ++i;
    } else if (a == "--repeats") {
      o.repeats = std::max(1, std::atoi(value.c_str()));
      ++i;
    } else if (a == "--dtype") {
      o.dtype = value == "bf16"  ? DType::kBF16
                : value == "f16" ? DType::kF16
                                 : DType::kF32;
      ++i;
    } else if (a == "--codec") {
      o.codecs = {value};
      ++i;
    } else if (a == "--cpu-time") {
      o.clock = CLOCK_THREAD_CPUTIME_ID;
    } else if (a == "--no-mid-rise") {
      o.mid_rise = false;
    } else if (a == "--dither") {
      o.dither = true;
    } else if (a[0] == '-') {
      std::fprintf(stderr, "unknown option %s; see the top of this source\n",
                   a.c_str());
      std::exit(2);
    } else {
      o.files.push_back(a);
    }
  }
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = Parse(argc, argv);
  std::printf("%-28s %7s  %-5s %-7s %6s %6s %8s %10s %8s %7s\n", "data", "MB",
              "codec", "ISA", "ratio", "bits", "compress", "decompress", "mask",
              "memcpy");
  const auto measure = [&o](const Tensor& t) {
    for (const std::string& codec : o.codecs) Measure(t, o, codec);
  };
  if (o.files.empty()) {
    measure(GenerateTensor(8 * 56 * 56, 256));
    measure(GenerateTensor(8 * 112 * 112, 64));
    measure(GenerateTensor(1000, 40));
    for (double density : {0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0}) {
      Measure(GenerateTensor(8 * 56 * 56, 256, density), o, "zvc");
    }
  }
  for (const std::string& file : o.files) measure(ReadTensor(file));
}
