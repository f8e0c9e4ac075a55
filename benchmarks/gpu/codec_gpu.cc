// Every GPU kernel against the CPU: codecs byte for byte, and their speed.
// Needs a GPU, nothing of TensorFlow; tools/build_native.py gpu builds and runs
// it.
//
//   codec_gpu [random shapes, default 200] [data of the speeds ...]
//
// Data are MB of made-up activations (default 16 64 256; 0: none), or
// FILE:WIDTH:CHANNELS:BOUND for the float32 values in a file, channels last, or
// ResNet50: what the fixed-rate codec, batch normalization and pooling do in a
// step of it.
//
// Prints `N passed, N failed`, then a table of the codecs and one of their
// kernels, or of ResNet50's. Ends with a status other than 0 when a check
// failed, with 77 when there is no GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/codec/layers/batch_norm.h"
#include "cc/codec/masks/bitmask.h"
#include "cc/codec/registry/choose.h"
#include "cc/codec/registry/codec.h"
#include "cc/codec/registry/gpu.h"
#include "cc/codec/fixed_rate/fixed_rate.h"
#include "cc/codec/fixed_rate_gpu/gpu.h"
#include "cc/codec/layers/batch_norm_gpu.h"
#include "cc/codec/statistics/gpu.h"
#include "cc/codec/statistics/items.h"
#include "cc/codec/statistics/tensor_stats.h"
#include "cc/codec/statistics/gradient_stats.h"
#include "cc/codec/masks/gpu.h"
#include "cc/codec/stream/gpu_scales.h"
#include "cc/codec/stream/scales.h"
#include "cc/codec/testing/codecs.h"
#include "cc/codec/masks/pool.h"
#include "cc/codec/testing/data.h"

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
  GpuTotals* host;
  Totals() { CUDA(cudaHostAlloc(&host, sizeof *host, cudaHostAllocMapped)); }
  ~Totals() { cudaFreeHost(host); }
};

uint32_t ReadDamaged(const DeviceBytes& flag) {
  uint32_t value;
  CUDA(cudaMemcpy(&value, flag.data(), 4, cudaMemcpyDeviceToHost));
  return value;
}

struct Codec {
  CodecId id;
  const char* name;
};
constexpr Codec kCodecs[] = {{CodecId::kPlane, "plane"},
                             {CodecId::kRans, "rans"},
                             {CodecId::kZvc, "zvc"}};

std::string Text(const Codec& codec, const EncodeParams& p) {
  return std::string(codec.name) + ", dtype " +
         std::to_string(static_cast<int>(p.dtype)) + ", n " +
         std::to_string(p.n) + ", channels " + std::to_string(p.channels) +
         ", width " + std::to_string(p.width) + ", eb " + std::to_string(p.eb) +
         (p.mid_rise ? ", mid-rise" : "") + (p.dither ? ", dither" : "");
}

Bytes EncodeOnCpu(const Codec& codec, const EncodeParams& p, const Bytes& x,
                  int64_t* nonzero) {
  const auto encoder = MakeEncoder(codec.id, p);
  Bytes scratch(encoder->scratch_bytes());
  Ok(encoder->Encode(x.data(), scratch.data(), scratch.size(), SerialFor));
  Bytes stream(encoder->total_bytes());
  Ok(encoder->Write(stream.data(), SerialFor));
  *nonzero = encoder->nonzero();
  return stream;
}

// The scales of a tensor's channels, found by the GPU, which finds the CPU's.
struct Scales {
  explicit Scales(const Bytes& x, const EncodeParams& p)
      : sample(SampleChannels(x.data(), p.dtype, p.n, p.channels, SerialFor)),
        own(sample, p),
        scratch(GpuScalesScratchBytes(p.channels)) {
    const DeviceBytes x_dev(x);
    GpuScaleTotals* totals = nullptr;
    CUDA(cudaHostAlloc(&totals, sizeof *totals, cudaHostAllocMapped));
    Ok(GpuSampleChannels({x_dev.data(), p.dtype, p.n}, p.channels,
                         scratch.data(), totals, nullptr));
    Ok(GpuOwnScales(p, scratch.data(), totals, nullptr));
    CUDA(cudaDeviceSynchronize());
    const std::string what = Text({CodecId::kPlane, "scales"}, p);
    CHECK_MSG(totals->sigma == sample.sigma &&
                  totals->mean_square == sample.mean_square,
              what);
    const ChannelScales host = own.scales();
    dev = GpuScalesIn(p, scratch.data());
    const Bytes found = scratch.Read();
    const auto* const base = static_cast<const uint8_t*>(scratch.data());
    if (host.exponents != nullptr) {
      const auto* at =
          reinterpret_cast<const uint8_t*>(dev.exponents) - base + found.data();
      CHECK_MSG(std::memcmp(at, host.exponents, p.channels) == 0, what);
    }
    if (host.centres != nullptr) {
      const auto* at =
          reinterpret_cast<const uint8_t*>(dev.centres) - base + found.data();
      CHECK_MSG(std::memcmp(at, host.centres, 2 * p.channels) == 0, what);
    }
    CHECK_MSG((totals->has_exponents != 0) == (host.exponents != nullptr) &&
                  (totals->has_centres != 0) == (host.centres != nullptr),
              what);
    CHECK_MSG(std::fabs(totals->rms_bound_over_eb - own.rms_bound_over_eb()) <=
                  1e-9 * own.rms_bound_over_eb(),
              what);
    if (!totals->has_exponents) dev.exponents = nullptr;
    if (!totals->has_centres) dev.centres = nullptr;
    cudaFreeHost(totals);
  }

  const ChannelSample sample;
  const OwnScales own;
  const DeviceBytes scratch;
  ChannelScales dev;
};

// scales: null for none.
void TestOne(const Codec& codec, const Bytes& x, EncodeParams p,
             const Scales* scales, std::mt19937* random) {
  const std::string what = Text(codec, p);
  if (scales != nullptr && !IsLossless(codec.id))
    p.scales = scales->own.scales();
  int64_t nonzero = 0;
  const Bytes cpu = EncodeOnCpu(codec, p, x, &nonzero);
  if (scales != nullptr && !IsLossless(codec.id)) p.scales = scales->dev;
  const DeviceBytes x_dev(x), scratch(GpuEncoderOf(codec.id).scratch_bytes(p));
  Totals totals;
  if (!Ok(GpuEncoderOf(codec.id).measure(p, x_dev.data(), scratch.data(),
                                         totals.host, nullptr))) {
    return;
  }
  CUDA(cudaDeviceSynchronize());
  const size_t bytes = GpuEncoderOf(codec.id).stream_bytes(p, *totals.host);
  if (!CHECK_MSG(bytes == cpu.size(), what)) return;
  CHECK_MSG(static_cast<int64_t>(totals.host->nonzero) == nonzero, what);
  const DeviceBytes stream(bytes);
  if (!Ok(GpuEncoderOf(codec.id).write(p, x_dev.data(), scratch.data(),
                                       *totals.host, stream.data(), nullptr))) {
    return;
  }
  CHECK_MSG(stream.Read() == cpu, what);

  Bytes expected(x.size());
  DecodeStream({cpu.data(), cpu.size(), p.dtype, p.n}, expected.data(),
               SerialFor);
  const DeviceBytes out(x.size()), flag(Bytes(4, 0));
  GpuEncoded from;
  from.stream_dev = stream.data();
  from.bytes = bytes;
  from.dtype = p.dtype;
  from.n = p.n;
  from.channels = p.channels;
  from.width = (*random)() % 4 ? p.width : 100;
  from.damaged_dev = static_cast<uint32_t*>(flag.data());
  from.any_codec = (*random)() % 2;
  Ok(GpuDecode(codec.id, from, out.data(), nullptr));
  CHECK_MSG(out.Read() == expected, what);
  CHECK_MSG(ReadDamaged(flag) == 0, what);
  if (p.mid_rise || p.dither || IsLossless(codec.id)) {
    StreamMaskGradient({cpu.data(), cpu.size(), p.dtype, p.n}, x.data(),
                       expected.data(), SerialFor);
    Ok(GpuMaskGradient(codec.id, from, x_dev.data(), out.data(), nullptr));
    CHECK_MSG(out.Read() == expected, what);
  }

  // Damage: an error, or some values; compute-sanitizer watches the accesses.
  Bytes broken = cpu;
  for (int i = 0; i < 4 && !broken.empty(); ++i) {
    broken[(*random)() % broken.size()] ^= 1 << (*random)() % 8;
  }
  if (!from.any_codec) {  // with a damaged one the CPU asks another decoder
    broken[offsetof(StreamHeader, codec)] = static_cast<uint8_t>(codec.id);
  }
  const DeviceBytes broken_dev(broken);
  from.stream_dev = broken_dev.data();
  Ok(GpuDecode(codec.id, from, out.data(), nullptr));
  const Status on_cpu = DecodeStream(
      {broken.data(), broken.size(), p.dtype, p.n}, expected.data(), SerialFor);
  CUDA(cudaDeviceSynchronize());
  if (on_cpu.ok()) CHECK_MSG(out.Read() == expected, "damaged, " + what);

  // Too short for any codec: noticed by the one that the header names.
  if (p.n == 0 || !from.any_codec) return;
  const DeviceBytes header(
      Bytes(cpu.begin(), cpu.begin() + sizeof(StreamHeader)));
  CUDA(cudaMemset(flag.data(), 0, 4));
  from.stream_dev = header.data();
  from.bytes = sizeof(StreamHeader);
  Ok(GpuDecode(codec.id, from, out.data(), nullptr));
  CHECK_MSG(out.Read() == Bytes(x.size()), "short, " + what);
  CHECK_MSG(ReadDamaged(flag) != 0, "short, " + what);
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

// The GPU's sample, and the codec that it leads to.
void TestChoice() {
  int64_t chosen[4] = {};
  for (DType dtype : kAllDTypes) {
    for (int64_t channels : {3, 8, 48, 64, 100, 512}) {
      for (int kind = 0; kind < 3; ++kind) {
        EncodeParams p;
        p.dtype = dtype;
        p.channels = channels;
        p.width = 14;
        p.n = (kMinChosenValues * (1 + kind) / channels + 1) * channels;
        p.eb = kind == 2 ? 1e-6f : 0.1f;
        // Noise for plane, smooth images for rans; few values, tightly bound,
        // for zvc.
        std::vector<float> values = Activations(p.n, false, channels);
        for (int64_t i = 0; i < p.n; ++i) {
          if (kind == 1)
            values[i] = 5 * std::sin(0.01f * (i / channels) + i % channels);
          if (kind == 2 && i % 16 != 0) values[i] = 0;
        }
        const Bytes x = ToTensor(values, dtype);
        const SamplePlan plan(p);
        const DeviceBytes x_dev(x), sample(plan.n * ItemBytes(dtype));
        Ok(GpuTakeSample(x_dev.data(), dtype, plan, sample.data(), nullptr));
        const Bytes found = sample.Read();
        const std::string what = Text({CodecId::kPlane, "a choice"}, p);
        CHECK_MSG(plan.n > 0 && found == SampleOf(x.data(), dtype, plan), what);
        const CodecId codec = ChooseBySample(found.data(), plan, p);
        CHECK_MSG(codec == ChooseCodec(x.data(), p), what);
        ++chosen[static_cast<int>(codec)];
      }
    }
  }
  for (const Codec& codec : kCodecs) {
    CHECK_MSG(chosen[static_cast<int>(codec.id)] > 0, codec.name);
  }
}

// The CPU's verdict on every bit of the flags, of a payload's beginning and
// end, and on some between. An odd number of values, and of non-zeros: there is
// padding.
void TestDamage(const Codec& codec, DType dtype) {
  const EncodeParams p = Params(dtype, 1003, 1, 1e-3f, true);
  std::vector<float> values =
      Activations(p.n, true, 3 + static_cast<int>(dtype));
  values[0] = 0;
  const auto zeros = std::count(values.begin(), values.end(), 0.0f);
  values[0] = zeros % 2 == 0 ? 0.0f : 1.0f;
  const Bytes stream = EncodeWith(codec.id, ToTensor(values, dtype), p);
  StreamHeader header;
  std::memcpy(&header, stream.data(), sizeof header);
  const DeviceBytes out(p.n * ItemBytes(dtype));
  const size_t begin = 8 * header.payload_offset, end = 8 * stream.size();
  std::vector<size_t> bits;
  for (int i = 0; i < 8; ++i)
    bits.push_back(8 * offsetof(StreamHeader, flags) + i);
  for (size_t bit = begin; bit < end;
       bit += bit < begin + 1280 || bit + 32 > end ? 1 : 19) {
    bits.push_back(bit);
  }
  long wrong = 0;
  for (const size_t bit : bits) {
    Bytes broken = stream, expected(p.n * ItemBytes(dtype));
    broken[bit / 8] ^= 1 << bit % 8;
    const bool ok = DecodeStream({broken.data(), broken.size(), dtype, p.n},
                                 expected.data(), SerialFor)
                        .ok();
    const DeviceBytes broken_dev(broken), flag(Bytes(4, 0));
    GpuEncoded from;
    from.stream_dev = broken_dev.data();
    from.bytes = broken.size();
    from.dtype = dtype;
    from.n = p.n;
    from.damaged_dev = static_cast<uint32_t*>(flag.data());
    Ok(GpuDecode(codec.id, from, out.data(), nullptr));
    wrong += (ReadDamaged(flag) == 0) != ok || (ok && out.Read() != expected);
  }
  CHECK_MSG(wrong == 0, "damaged, " + Text(codec, p));
}

// The same numbers: arithmetic with a NaN gives one of other bits on a GPU.
bool SameNumbers(const Bytes& a, const Bytes& b, const EncodeParams& p) {
  bool same = a.size() == b.size();
  for (int64_t i = 0; same && i < p.n; ++i) {
    same = SameNumber(LoadFloat(a.data(), p.dtype, i),
                      LoadFloat(b.data(), p.dtype, i));
  }
  return same;
}

// Masks, statistics and batch normalization of one tensor.
void TestItems(const Bytes& x, const EncodeParams& p) {
  const std::string what = Text({CodecId::kPlane, "items"}, p);
  const DeviceBytes x_dev(x), out(x.size()), bits(BitmaskBytes(p.n));
  Bytes want_bits(BitmaskBytes(p.n)), want(x.size());
  auto* bits_dev = static_cast<uint8_t*>(bits.data());
  BitmaskPack({x.data(), p.dtype, p.n}, {0.0f, 6.0f}, want_bits.data(),
              SerialFor);
  Ok(GpuBitmaskPack({x_dev.data(), p.dtype, p.n}, {0.0f, 6.0f}, bits_dev,
                    nullptr));
  CHECK_MSG(bits.Read() == want_bits, what);
  for (float off : {0.0f, 0.25f}) {
    BitmaskGradient(want_bits.data(), {1.5f, off}, {x.data(), p.dtype, p.n},
                    want.data(), SerialFor);
    Ok(GpuBitmaskGradient(bits_dev, {1.5f, off}, {x_dev.data(), p.dtype, p.n},
                          out.data(), nullptr));
    CHECK_MSG(SameNumbers(out.Read(), want, p), what);
  }

  const GradientStats stats =
      MeasureGradient(x.data(), p.dtype, p.n, p.channels, SerialFor);
  const DeviceBytes scratch(GpuSummaryScratchBytes()), three(3 * sizeof(float));
  Ok(GpuGradientStats({x_dev.data(), p.dtype, p.n}, p.channels, scratch.data(),
                      static_cast<float*>(three.data()), nullptr));
  float found[3];
  std::memcpy(found, three.Read().data(), sizeof found);
  CHECK_MSG(std::fabs(found[0] - stats.mean_channel_sum_sq) <=
                    1e-4 * std::fabs(stats.mean_channel_sum_sq) + 1e-30 ||
                std::isinf(found[0]),
            what);
  CHECK_MSG(
      std::fabs(found[1] - stats.mean_abs) <= 1e-4 * stats.mean_abs + 1e-30 ||
          std::isinf(found[1]),
      what);
  CHECK_MSG(static_cast<int64_t>(found[2]) == stats.nonfinite, what);
  Summary summary;
  std::memcpy(&summary, scratch.Read().data(), sizeof summary);
  CHECK_MSG(summary.finite + summary.nonfinite == static_cast<double>(p.n),
            what);
  CHECK_MSG(
      summary.finite == 0 || static_cast<double>(summary.high) - summary.low ==
                                 ValueRange(x.data(), p.dtype, p.n, SerialFor),
      what);
}

// From plane's stream, as the CPU reads it.
void TestBatchNorm(int64_t rows, int64_t channels) {
  const EncodeParams p =
      Params(DType::kF32, rows * channels, channels, 1e-4f, false);
  const Bytes dy = ToTensor(Activations(p.n, false, 1), p.dtype);
  const Bytes vectors[] = {ToTensor(Activations(channels, false, 2), p.dtype),
                           ToTensor(Activations(channels, false, 3), p.dtype),
                           ToTensor(Activations(channels, false, 4), p.dtype)};
  const auto floats = [](const Bytes& b) {
    return reinterpret_cast<const float*>(b.data());
  };
  const Bytes stream = EncodeWith(
      CodecId::kPlane, ToTensor(Activations(p.n, false, 5), p.dtype), p);
  std::vector<float> dx(p.n), dgamma(channels), dbeta(channels);
  Ok(BatchNormGradient(
      {stream.data(), stream.size(), p.dtype, p.n}, dy.data(),
      {channels, floats(vectors[0]), floats(vectors[1]), floats(vectors[2])},
      {dx.data(), dgamma.data(), dbeta.data()}, SerialFor));

  const DeviceBytes x_hat(DecodeWith(stream, p)), dy_dev(dy);
  const DeviceBytes gamma(vectors[0]), mean(vectors[1]), inv(vectors[2]);
  const DeviceBytes scratch(GpuBatchNormScratchBytes(p.n, channels));
  const DeviceBytes dgamma_dev(4 * channels), dbeta_dev(4 * channels);
  const auto dev = [](const DeviceBytes& b) {
    return static_cast<float*>(b.data());
  };
  Ok(GpuBatchNormGradient(
      {x_hat.data(), p.dtype, p.n}, dy_dev.data(),
      {channels, dev(gamma), dev(mean), dev(inv)}, scratch.data(),
      {dy_dev.data(), dev(dgamma_dev), dev(dbeta_dev)}, nullptr));
  const auto near = [&](const DeviceBytes& found,
                        const std::vector<float>& want, double tolerance) {
    const Bytes bytes = found.Read();
    bool all = true;
    for (size_t i = 0; i < want.size(); ++i) {
      all = all && std::fabs(floats(bytes)[i] - want[i]) < tolerance;
    }
    CHECK_MSG(all, std::to_string(rows) + " x " + std::to_string(channels));
  };
  near(dgamma_dev, dgamma, 1e-4 * rows);
  near(dbeta_dev, dbeta, 1e-4 * rows);
  near(dy_dev, dx, 1e-4);
}

// The codec of a fixed rate: the CPU's bytes with a bound that is set, and of
// its stream the CPU's values.
class FixedRateTest {
 public:
  FixedRateTest(const FixedRateTensor& of, bool of_range)
      : of_(of),
        of_range_(of_range),
        n_(ElementsOf(of.dims)),
        x_(n_ * ItemBytes(of.dtype)),
        stream_(of.coding.StreamBytes(of.dims)) {
    FillRandom(static_cast<uint32_t>(n_ + of.coding.bits), of.dtype, n_, 11,
               x_.data());
    for (int64_t i = 0; i < n_; ++i) {
      float v = LoadFloat(x_.data(), of.dtype, i);
      // Unequal: the mean of so many equal ones is as far as a centre may be.
      const float uneven = 1 + static_cast<float>(i % 97) / 128;
      if (std::isfinite(v)) v = std::clamp(v, -100.0f, 100.0f) * uneven;
      if (of.coding.mid_rise) v = std::max(v, 0.0f);
      StoreFloat(v, of.dtype, x_.data(), i);
    }
    what_ = "fixed rate, " + std::to_string(of.coding.bits) + " bits, dtype " +
            std::to_string(static_cast<int>(of.dtype)) + ", of";
    for (const int64_t d : of.dims) what_ += " " + std::to_string(d);
  }

  void Run() {
    Encode();
    const DeviceBytes stream(stream_), state(ToTensor(next_, DType::kF32));
    const DeviceBytes out(x_.size());
    const FixedRateStream on_gpu = {of_, static_cast<uint8_t*>(stream.data()),
                                    static_cast<float*>(state.data())};
    const FixedRateStream on_cpu = {of_, stream_.data(), next_.data()};
    Bytes want(x_.size());
    FixedRateDecode(on_cpu, want.data(), SerialFor);
    Ok(GpuFixedRateDecode(on_gpu, out.data(), nullptr));
    CHECK_MSG(out.Read() == want, what_);
    if (of_.coding.mid_rise) {
      const Bytes dy = ToTensor(Activations(n_, false, 3), of_.dtype);
      const Bytes more = ToTensor(Activations(n_, false, 4), of_.dtype);
      const DeviceBytes dy_dev(dy), more_dev(more);
      FixedRateMaskGradient(on_cpu, {dy.data(), more.data()}, want.data(),
                            SerialFor);
      Ok(GpuFixedRateMaskGradient(on_gpu, {dy_dev.data(), more_dev.data()},
                                  more_dev.data(), nullptr));
      CHECK_MSG(more_dev.Read() == want, what_);
      FixedRateMaskGradient(on_cpu, {dy.data()}, want.data(), SerialFor);
      Ok(GpuFixedRateMaskGradient(on_gpu, {dy_dev.data()}, dy_dev.data(),
                                  nullptr));
      CHECK_MSG(dy_dev.Read() == want, what_);
    } else {
      BatchNorm(on_cpu, on_gpu);
    }
  }

 private:
  void Encode() {
    std::vector<float> state(kStateFields);
    state[kBoundSet] = of_range_ ? 0 : 0.5f;
    state[kSteps] = 7;
    next_ = state;
    BoundRule bound;
    bound.relative_bound = 0.1f;
    bound.decay = 0.9f;
    bound.of_range = of_range_;
    FixedRateEncode(of_, {x_.data(), state.data(), bound, true},
                    {stream_.data(), next_.data()}, SerialFor);
    const DeviceBytes x(x_), before(ToTensor(state, DType::kF32));
    const DeviceBytes after(4 * kStateFields), stream(stream_.size());
    const DeviceBytes scratch(kGpuFixedRateScratchBytes);
    Ok(GpuFixedRateEncode(
        of_, {x.data(), static_cast<float*>(before.data()), bound, true},
        scratch.data(),
        {static_cast<uint8_t*>(stream.data()),
         static_cast<float*>(after.data())},
        nullptr));
    CHECK_MSG(stream.Read() == stream_, what_);
    const Bytes found = after.Read();
    for (int i = 0; i < kStateFields; ++i) {
      const float value = LoadFloat(found.data(), DType::kF32, i);
      CHECK_MSG(std::fabs(value - next_[i]) <= 1e-5f * std::fabs(next_[i]),
                what_ + ": field " + std::to_string(i) + " of the state is " +
                    std::to_string(value) + ", not " +
                    std::to_string(next_[i]));
    }
  }

  void BatchNorm(const FixedRateStream& on_cpu, const FixedRateStream& on_gpu) {
    const int64_t channels = of_.dims.back(), rows = n_ / channels;
    const Bytes dy = ToTensor(Activations(n_, false, 1), of_.dtype);
    const auto floats = [](const Bytes& b) {
      return reinterpret_cast<const float*>(b.data());
    };
    const auto on_device = [](const DeviceBytes& b) {
      return static_cast<float*>(b.data());
    };
    const Bytes gamma = ToTensor(Activations(channels, false, 2), DType::kF32);
    const Bytes mean = ToTensor(Activations(channels, false, 3), DType::kF32);
    const Bytes inv = ToTensor(Activations(channels, true, 4), DType::kF32);
    Bytes dx(x_.size());
    std::vector<float> dgamma(channels), dbeta(channels);
    BatchNormGradientOfFixedRate(
        on_cpu, dy.data(), {channels, floats(gamma), floats(mean), floats(inv)},
        {dx.data(), dgamma.data(), dbeta.data()}, SerialFor);
    const DeviceBytes dy_dev(dy), gamma_dev(gamma), mean_dev(mean),
        inv_dev(inv);
    const DeviceBytes dgamma_dev(4 * channels), dbeta_dev(4 * channels);
    const DeviceBytes scratch(GpuBatchNormScratchBytes(of_));
    Ok(GpuBatchNormGradientOfFixedRate(
        on_gpu, dy_dev.data(),
        {channels, on_device(gamma_dev), on_device(mean_dev),
         on_device(inv_dev)},
        scratch.data(),
        {dy_dev.data(), on_device(dgamma_dev), on_device(dbeta_dev)}, nullptr));
    const auto near = [&](const DeviceBytes& found, const void* want,
                          DType dtype, int64_t count, double tolerance) {
      const Bytes bytes = found.Read();
      double largest = 0, off = 0;
      for (int64_t i = 0; i < count; ++i) {
        const double value = LoadFloat(want, dtype, i);
        largest = std::max(largest, std::fabs(value));
        off =
            std::max(off, std::fabs(value - LoadFloat(bytes.data(), dtype, i)));
      }
      // Of one row all but dbeta is the rounding of what cancels.
      CHECK_MSG(off <= tolerance * largest + 1e-6,
                what_ + ", batch normalization: off by " + std::to_string(off) +
                    " of " + std::to_string(largest));
    };
    const double of_type = of_.dtype == DType::kF32 ? 1e-4 : 1e-2;
    near(dgamma_dev, dgamma.data(), DType::kF32, channels, 1e-4);
    near(dbeta_dev, dbeta.data(), DType::kF32, channels, 1e-4 * rows);
    near(dy_dev, dx.data(), of_.dtype, n_, of_type);
  }

  const FixedRateTensor of_;
  const bool of_range_;
  const int64_t n_;
  Bytes x_, stream_;
  std::vector<float> next_;
  std::string what_;
};

// As words and scales group values: alike, or not, along all dimensions, with
// and without missing ones.
void TestFixedRate() {
  const std::vector<int64_t> shapes[] = {
      {1},         {17},           {5, 3},        {64, 40},
      {256, 64},   {2, 40, 3, 8},  {5, 7, 3, 13}, {16, 7, 7, 33},
      {4, 70, 96}, {3, 1, 2, 515}, {5, 3, 3, 64}, {33, 3, 32},
      {7, 5, 320}, {64, 3, 5, 24}, {32, 2, 1100}, {50, 3, 3, 64}};
  int i = 0;
  for (const auto& dims : shapes) {
    for (const DType dtype : kAllDTypes) {
      for (const bool mid_rise : {false, true}) {
        const int bits = 2 + i++ % 7;
        FixedRateTest({{bits, mid_rise}, dims, dtype}, i % 5 == 0).Run();
      }
    }
  }
}

void TestPool(DType dtype, const PoolShape& s) {
  int64_t in = s.batch * s.channels, out = in;
  for (int d = 0; d < 3; ++d) {
    in *= s.in_size[d];
    out *= s.out_size[d];
  }
  const size_t item = ItemBytes(dtype);
  Bytes x(in * item), y(out * item), index(PoolIndexBytes(s)), dx(in * item);
  FillRandom(1, dtype, in, 20, x.data());
  MaxPoolIndex(x.data(), dtype, s, y.data(), index.data(), SerialFor);
  MaxPoolGradient(index.data(), dtype, s, y.data(), dx.data(), SerialFor);
  const DeviceBytes x_dev(x), y_dev(y.size()), index_dev(index.size());
  const DeviceBytes dx_dev(dx.size());
  auto* positions = static_cast<uint8_t*>(index_dev.data());
  Ok(GpuMaxPoolIndex(x_dev.data(), dtype, s, y_dev.data(), positions, nullptr));
  Ok(GpuMaxPoolGradient(positions, dtype, s, y_dev.data(), dx_dev.data(),
                        nullptr));
  const std::string what = "pooling window " + std::to_string(s.window[2]) +
                           ", channels " + std::to_string(s.channels);
  CHECK_MSG(y_dev.Read() == y, what);
  CHECK_MSG(index_dev.Read() == index, what);
  // A NaN that two windows share is one in the sum, whatever its bits.
  const Bytes found = dx_dev.Read();
  bool same = true;
  for (int64_t i = 0; i < in; ++i) {
    same = same && SameNumber(LoadFloat(found.data(), dtype, i),
                              LoadFloat(dx.data(), dtype, i));
  }
  CHECK_MSG(same, what);
}

void TestPools() {
  struct Case {
    int64_t window[3], stride[3], in[3], out[3], pad[3];
  };
  const Case cases[] = {
      {{1, 1, 2}, {1, 1, 2}, {1, 1, 9}, {1, 1, 4}, {0, 0, 0}},  // 1 bit
      {{1, 2, 2}, {1, 2, 2}, {1, 8, 6}, {1, 4, 3}, {0, 0, 0}},  // 2 bits
      {{1, 3, 3}, {1, 2, 2}, {1, 9, 7}, {1, 5, 4}, {0, 1, 1}},  // 4, overlap
      {{2, 3, 3}, {1, 1, 1}, {4, 5, 6}, {4, 5, 6}, {0, 1, 1}},  // 8, 3-D
      {{1, 17, 17}, {1, 5, 5}, {1, 20, 20}, {1, 4, 4}, {0, 6, 6}},  // 16 bits
      {{1, 1, 1}, {1, 3, 3}, {1, 7, 7}, {1, 3, 3}, {0, 0, 0}},      // gaps
  };
  for (DType dtype : kAllDTypes) {
    for (const Case& c : cases) {
      for (int64_t channels : {3, 32}) {
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
        TestPool(dtype, s);
      }
    }
  }
}

void TestShapes(int count) {
  std::mt19937 random(11);
  const int64_t sizes[] = {0, 1, 31, 32, 33, 1023, 1024, 1025, 4096, 65536 + 7};
  const int64_t channels[] = {1, 3, 8, 31, 32, 48, 64, 96, 100, 256};
  const int64_t widths[] = {0, 1, 7, 28, 32, 56, 112, 224};  // for rans
  for (int i = 0; i < count; ++i) {
    EncodeParams p;
    p.dtype = kAllDTypes[random() % 3];
    p.channels = channels[random() % 10];
    p.width = widths[random() % 8];
    const int64_t pixels =
        random() % 2 ? sizes[random() % 10] : random() % 5000;
    p.n = pixels * p.channels;
    const float bounds[] = {1e-6f, 1e-3f, 0.01f, 0.1f, 1.0f, 1e4f};
    p.eb = bounds[random() % 6];
    p.mid_rise = i % 2 == 1;
    p.dither = i % 3 == 0;
    Bytes x;
    if (random() % 3 == 0) {
      x.resize(p.n * ItemBytes(p.dtype));
      FillRandom(random(), p.dtype, p.n, random() % 2 ? 50 : 0, x.data());
    } else {
      std::vector<float> v = Activations(p.n, random() % 2, random());
      const bool far = random() % 2;  // channels of other scales, off zero
      for (int64_t j = 0; far && j < p.n; ++j) {
        const auto c = static_cast<int>(j % p.channels);
        if (v[j] != 0) v[j] = std::ldexp(v[j], c % 9 - 4) + 3.0f * (c % 5);
      }
      x = ToTensor(v, p.dtype);
    }
    p.seed = p.dither ? static_cast<uint32_t>(random()) : 0;
    std::unique_ptr<Scales> scales;
    if (p.n > 0 && random() % 2) scales = std::make_unique<Scales>(x, p);
    for (const Codec& codec : kCodecs) {
      TestOne(codec, x, p, scales.get(), &random);
    }
    if (p.n > 0 && i % 8 == 0) TestItems(x, p);
  }
}

constexpr int kRuns = 30;

class Event {
 public:
  Event() { CUDA(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void Record(CUstream_st* cuda_stream = nullptr) {
    CUDA(cudaEventRecord(event_, cuda_stream));
  }
  // Until here since `from`; waits for both.
  double SecondsSince(const Event& from) const {
    float ms;
    CUDA(cudaEventSynchronize(event_));
    CUDA(cudaEventElapsedTime(&ms, from.event_, event_));
    return ms / 1e3;
  }

 private:
  cudaEvent_t event_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Median of the runs, in seconds, by the GPU's clock.
template <class Run>
double Seconds(const Run& run) {
  Event begin, end;
  std::vector<double> all;
  run();
  for (int i = 0; i < kRuns; ++i) {
    begin.Record();
    run();
    end.Record();
    all.push_back(end.SecondsSince(begin));
  }
  return Median(all);
}

// By the host's clock, what the run waits for included.
template <class Run>
double HostSeconds(const Run& run) {
  std::vector<double> all;
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> s =
        std::chrono::steady_clock::now() - begin;
    all.push_back(s.count());
  }
  return Median(all);
}

// Seconds of every kernel while it exists, by purpose, in the order of their
// launches.
class KernelTimes {
 public:
  KernelTimes() {
    times_.clear();
    gpu::launch_observer = Observe;
  }
  ~KernelTimes() { gpu::launch_observer = nullptr; }

  std::vector<std::pair<std::string, double>> Medians() const {
    std::vector<std::pair<std::string, double>> all;
    for (const auto& [what, seconds] : times_) {
      all.push_back({what, Median(seconds)});
    }
    return all;
  }
  void Print(const char* call, const std::string& row, double gb) const {
    for (const auto& [what, s] : Medians()) {
      std::printf("| %s | %s: %s | %.1f | %.0f |\n", row.c_str(), call,
                  what.c_str(), 1e6 * s, gb / s);
    }
  }

 private:
  static void Observe(const char* what, bool launched,
                      CUstream_st* cuda_stream) {
    static Event begin, end;
    if (!launched) return begin.Record(cuda_stream);
    end.Record(cuda_stream);
    const double s = end.SecondsSince(begin);
    for (auto& [name, seconds] : times_) {
      if (name == what) return seconds.push_back(s);
    }
    times_.push_back({what, {s}});
  }
  static inline std::vector<std::pair<std::string, std::vector<double>>> times_;
};

// A float32 tensor to be compressed, and how.
struct Data {
  std::string name;
  EncodeParams params;
  Bytes x;

  Data(bool relu, int mb) : name(relu ? "ReLU" : "normal") {
    params.n = int64_t{mb} * (1 << 20) / 4;
    params.channels = 64;
    params.width = 56;
    params.mid_rise = relu;
    params.eb = relu ? 0.058f : 0.1f;  // a tenth of the standard deviation
    x = ToTensor(Activations(params.n, relu, 1), params.dtype);
  }

  // FILE:WIDTH:CHANNELS:BOUND. The mask is kept of what has no negative value.
  explicit Data(const std::string& file) {
    const size_t end = file.find(':');
    const std::string path = file.substr(0, end);
    long long width = 0, channels = 0;
    if (end == std::string::npos ||
        std::sscanf(file.c_str() + end, ":%lld:%lld:%f", &width, &channels,
                    &params.eb) != 3) {
      Refuse(file, "data must be MB or FILE:WIDTH:CHANNELS:BOUND");
    }
    params.width = width;
    params.channels = channels;
    std::ifstream in(path, std::ios::binary);
    if (!in) Refuse(path, "the file of the values must exist");
    x.assign(std::istreambuf_iterator<char>(in), {});
    params.n = x.size() / 4;
    const auto* values = reinterpret_cast<const float*>(x.data());
    params.mid_rise =
        std::all_of(values, values + params.n, [](float v) { return v >= 0; });
    name = path.substr(path.find_last_of('/') + 1);
  }

 private:
  static void Refuse(const std::string& received, const char* rule) {
    std::printf("%s. Received: %s\n", rule, received.c_str());
    std::exit(2);
  }
};

// One tensor, compressed and decompressed again and again.
class Bench {
 public:
  Bench(const Codec& codec, const Data& data)
      : id_(codec.id),
        p_(data.params),
        x_(data.x),
        copy_(4 * p_.n),
        scratch_(GpuEncoderOf(id_).scratch_bytes(p_)),
        flag_(Bytes(4, 0)),
        row_(std::string(codec.name) + " | " + data.name + " | " +
             std::to_string(4 * p_.n >> 20)),
        gb_(4e-9 * p_.n) {
    Measure();
    CUDA(cudaDeviceSynchronize());
    bytes_ = GpuEncoderOf(id_).stream_bytes(p_, *totals_.host);
    stream_.reset(new DeviceBytes(bytes_));
    Write();
  }

  void PrintRates() {
    const double compress_s = Seconds([&] { Measure(), Write(); });
    const double op_s = HostSeconds([&] {  // the read-back that an op waits for
      Measure();
      CUDA(cudaStreamSynchronize(nullptr));
      Write();
      CUDA(cudaStreamSynchronize(nullptr));
    });
    const double decompress_s = Seconds([&] { Decode(); });
    const double copy_s = Seconds([&] {
      CUDA(cudaMemcpyAsync(copy_.data(), x_.data(), 4 * p_.n,
                           cudaMemcpyDeviceToDevice));
    });
    std::printf("| %s | %.2f | %.0f | %.0f | %.0f | %.0f |\n", row_.c_str(),
                4.0 * p_.n / bytes_, gb_ / compress_s, gb_ / op_s,
                gb_ / decompress_s, gb_ / copy_s);
    std::fflush(stdout);
  }

  void PrintKernels() {
    {
      const KernelTimes times;
      for (int i = 0; i < kRuns; ++i) Measure(), Write();
      times.Print("compress", row_, gb_);
    }
    const KernelTimes times;
    for (int i = 0; i < kRuns; ++i) Decode();
    times.Print("decompress", row_, gb_);
    std::fflush(stdout);
  }

 private:
  void Measure() {
    Ok(GpuEncoderOf(id_).measure(p_, x_.data(), scratch_.data(), totals_.host,
                                 nullptr));
  }
  void Write() {
    Ok(GpuEncoderOf(id_).write(p_, x_.data(), scratch_.data(), *totals_.host,
                               stream_->data(), nullptr));
  }
  void Decode() {
    GpuEncoded from;
    from.stream_dev = stream_->data();
    from.bytes = bytes_;
    from.n = p_.n;
    from.channels = p_.channels;
    from.width = p_.width;
    from.damaged_dev = static_cast<uint32_t*>(flag_.data());
    Ok(GpuDecode(id_, from, copy_.data(), nullptr));
  }

  const CodecId id_;
  const EncodeParams p_;
  const DeviceBytes x_, copy_, scratch_, flag_;
  const std::string row_;
  const double gb_;
  size_t bytes_ = 0;
  Totals totals_;
  std::unique_ptr<DeviceBytes> stream_;
};

void Speeds(const std::vector<Data>& all) {
  cudaDeviceProp properties;
  CUDA(cudaGetDeviceProperties(&properties, 0));
  std::printf(
      "\n%s; medians of %d, GB/s of uncompressed f32. Its L2 cache has %d MB: "
      "tensors of that size and less are read from it, not from memory.\n\n"
      "| codec | data | MB | ratio | compress | with read-back | decompress | "
      "device copy |\n|---|---|---|---|---|---|---|---|\n",
      properties.name, kRuns, properties.l2CacheSize >> 20);
  for (const bool kernels : {false, true}) {
    if (kernels) {
      std::printf(
          "\n| codec | data | MB | kernel | us | GB/s |\n"
          "|---|---|---|---|---|---|\n");
    }
    for (const Codec& codec : kCodecs) {
      for (const Data& data : all) {
        Bench bench(codec, data);
        if (kernels) {
          bench.PrintKernels();
        } else {
          bench.PrintRates();
        }
      }
    }
  }
}

// --- ResNet50 ---------------------------------------------------------------

// Tensors of one size that are normalized: of images of 224 px.
struct Stage {
  int64_t width, channels;
  int tensors;
};
constexpr int64_t kImages = 64;
constexpr Stage kStages[] = {{112, 64, 1}, {56, 64, 6},   {56, 256, 4},
                             {56, 128, 1}, {28, 128, 7},  {28, 512, 5},
                             {28, 256, 1}, {14, 256, 11}, {14, 1024, 7},
                             {14, 512, 1}, {7, 512, 5},   {7, 2048, 4}};

// What the calls of a step take, beginning with other data in the caches.
class NetworkTimes {
 public:
  explicit NetworkTimes(DType dtype)
      : dtype_(dtype),
        x_(ToTensor(Activations(Values(kStages[0]), true, 1), dtype)),
        dy_(ToTensor(Activations(Values(kStages[0]), false, 2), dtype)),
        out_(x_.Read().size()),
        stream_(x_.Read().size()),
        scratch_(32 << 20),
        other_(128 << 20) {
    for (const Stage& stage : kStages) {
      for (const bool mid_rise : {true, false}) Time(stage, mid_rise);
    }
    Pool();
  }

  void Print() const {
    for (const auto& [call, us] : us_) {
      std::printf("| %s | %s | %.0f |\n",
                  dtype_ == DType::kF32 ? "float32" : "bfloat16", call.c_str(),
                  us);
    }
    std::fflush(stdout);
  }

 private:
  static int64_t Values(const Stage& of) {
    return kImages * of.width * of.width * of.channels;
  }

  void Time(const Stage& stage, bool mid_rise) {
    FixedRateTensor of;
    of.coding.bits = 3;
    of.coding.mid_rise = mid_rise;
    of.dims = {kImages, stage.width, stage.width, stage.channels};
    of.dtype = dtype_;
    FixedRateInput in = {x_.data(), state_, {}, false};
    in.bound.relative_bound = 0.1f;
    auto* const bytes = static_cast<uint8_t*>(stream_.data());
    const FixedRateStream stream = {of, bytes, next_};
    const BatchNormChannels channels = {stage.channels, vector_, vector_,
                                        vector_};
    const NormGradients gradients = {out_.data(), vector_ + 2048,
                                     vector_ + 4096};
    Add(mid_rise ? "encode, the mask kept" : "encode, with centres",
        stage.tensors, [&] {
          Ok(GpuFixedRateEncode(of, in, scratch_.data(), {bytes, next_},
                                nullptr));
        });
    if (!mid_rise) {
      return Add("batch normalization's gradient", stage.tensors, [&] {
        Ok(GpuBatchNormGradientOfFixedRate(
            stream, dy_.data(), channels, scratch_.data(), gradients, nullptr));
      });
    }
    Add("decode", stage.tensors,
        [&] { Ok(GpuFixedRateDecode(stream, out_.data(), nullptr)); });
    Add("the mask's gradient", stage.tensors, [&] {
      Ok(GpuFixedRateMaskGradient(stream, {dy_.data()}, out_.data(), nullptr));
    });
    Add("the mask's gradient, of a sum", stage.tensors, [&] {
      Ok(GpuFixedRateMaskGradient(stream, {dy_.data(), x_.data()}, out_.data(),
                                  nullptr));
    });
  }

  void Pool() {
    const PoolShape shape = {
        kImages, 64, {1, 112, 112}, {1, 56, 56}, {1, 3, 3}, {1, 2, 2}, {}};
    auto* const index = static_cast<uint8_t*>(stream_.data());
    Add("max pooling", 1, [&] {
      Ok(GpuMaxPoolIndex(x_.data(), dtype_, shape, out_.data(), index,
                         nullptr));
    });
    Add("max pooling's gradient", 1, [&] {
      Ok(GpuMaxPoolGradient(index, dtype_, shape, dy_.data(), out_.data(),
                            nullptr));
    });
  }

  template <class Run>
  void Add(const std::string& call, int times, const Run& run) {
    const auto seconds = [&] {
      Event begin, end;
      CUDA(cudaMemsetAsync(other_.data(), 0, 128 << 20, nullptr));
      begin.Record();
      run();
      end.Record();
      return end.SecondsSince(begin);
    };
    std::vector<double> all;
    for (int i = 0; i < 7; ++i) all.push_back(seconds());
    For(call) += 1e6 * times * Median(all);
    const KernelTimes kernels;
    for (int i = 0; i < 7; ++i) seconds();
    for (const auto& [what, median] : kernels.Medians()) {
      For(call + ": " + what) += 1e6 * times * median;
    }
  }
  double& For(const std::string& call) {
    for (auto& [name, us] : us_) {
      if (name == call) return us;
    }
    us_.push_back({call, 0});
    return us_.back().second;
  }

  const DType dtype_;
  const DeviceBytes x_, dy_, out_, stream_, scratch_, other_;
  const DeviceBytes floats_{Bytes(4 * (3 * 2048 + 2 * kStateFields), 0)};
  float* const vector_ = static_cast<float*>(floats_.data());
  float *const state_ = vector_ + 3 * 2048, *const next_ =
                                                state_ + kStateFields;
  std::vector<std::pair<std::string, double>> us_;
};

void NetworkSpeeds() {
  std::printf(
      "\nResNet50, %d images of 224 px, 3 bits: all calls of a step, and their "
      "kernels, each begun after other data was written.\n\n"
      "| type | call: kernel | us |\n|---|---|---|\n",
      static_cast<int>(kImages));
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    NetworkTimes(dtype).Print();
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
  std::vector<std::string> asked(argv + std::min(argc, 2), argv + argc);
  if (asked.empty()) asked = {"16", "64", "256"};
  std::vector<comptrain::Data> all;
  bool network = false;
  for (const std::string& one : asked) {
    network = network || one == "ResNet50";
    if (one == "0" || one == "ResNet50") continue;
    if (one.find_first_not_of("0123456789") != std::string::npos) {
      all.emplace_back(one);
    } else {
      for (const bool relu : {true, false}) {
        all.emplace_back(relu, std::stoi(one));
      }
    }
  }
  comptrain::TestPools();
  comptrain::TestFixedRate();
  comptrain::TestBatchNorm(1, 32);
  comptrain::TestBatchNorm(129, 7);
  comptrain::TestBatchNorm(5000, 64);
  comptrain::TestChoice();
  for (const auto& codec : comptrain::kCodecs) {
    comptrain::TestDamage(codec, comptrain::DType::kF32);
    comptrain::TestDamage(codec, comptrain::DType::kF16);
  }
  comptrain::TestShapes(argc > 1 ? std::atoi(argv[1]) : 200);
  const int status = comptrain::FinishTests();
  if (!all.empty()) comptrain::Speeds(all);
  if (network) comptrain::NetworkSpeeds();
  return status;
}
