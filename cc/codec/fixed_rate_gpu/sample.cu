// The centres of a tensor and what its bound is made of, in a sample of its
// values.
#include <algorithm>
#include <string>
#include <vector>

#include "cc/codec/common/bits.h"
#include "cc/codec/common/gpu_launch.h"
#include "cc/codec/fixed_rate/sample.h"
#include "cc/codec/fixed_rate_gpu/scratch.h"
#include "cc/codec/fixed_rate_gpu/tensor.h"
#include "cc/codec/stream/quantize.h"

namespace comptrain::gpu {
namespace {

constexpr int kRangeThreads = 256, kRangeBlocks = 528;
constexpr int kSampleThreads = 512, kMostWidth = 32;
// Values that a thread asks for before it uses one of them.
constexpr int kAtOnce = 8;

// --- Range ------------------------------------------------------------------

__global__ void __launch_bounds__(kRangeThreads)
    FindRange(const void* x, DType dtype, int64_t n, Scratch* scratch) {
  __shared__ uint32_t ends[2];
  if (threadIdx.x < 2) ends[threadIdx.x] = 0;
  __syncthreads();
  uint32_t largest = 0, smallest = 0;
  int64_t i = int64_t{blockIdx.x} * kRangeThreads + threadIdx.x;
  for (; i < n; i += int64_t{gridDim.x} * kRangeThreads) {
    const float v = LoadFloat(x, dtype, i);
    if (!isfinite(v)) continue;
    const uint32_t ordered = Ordered(v);
    if (ordered > largest) largest = ordered;
    if (~ordered > smallest) smallest = ~ordered;
  }
  atomicMax(&ends[0], largest);
  atomicMax(&ends[1], smallest);
  __syncthreads();
  if (threadIdx.x != 0) return;
  atomicMax(&scratch->largest, ends[0]);
  atomicMax(&scratch->smallest, ends[1]);
}

// --- Sample -----------------------------------------------------------------

// Every stride-th of the pixels: values of all channels that lie side by side.
// Of a sample all numbers are below 2^31, and so are the sizes of dimensions.
struct SampledPixels {
  static constexpr int kMostDims = 8;
  int rank = 0;
  int64_t count = 1, channels = 1;
  int64_t step[kMostDims];  // in values
  uint32_t taken[kMostDims];
  Divisor along[kMostDims], by_channels;

  // False where the tensor has more dimensions than that, or larger ones.
  bool Set(const std::vector<int64_t>& dims, int64_t most) {
    const std::vector<int64_t> strides = SampleStrides(dims, most);
    channels = dims.back();
    by_channels = Divisor(channels);
    int64_t pixels = 1;
    std::vector<int64_t> counts, steps;
    for (int d = static_cast<int>(dims.size()) - 2; d >= 0; --d) {
      const int64_t taken = (dims[d] + strides[d] - 1) / strides[d];
      count *= taken;
      // All of neighbouring dimensions are one, and what has one pixel is none.
      const bool joins = strides[d] == 1 && !counts.empty() &&
                         steps.back() * counts.back() == pixels;
      if (joins) {
        counts.back() *= taken;
      } else if (taken > 1) {
        counts.push_back(taken);
        steps.push_back(pixels * strides[d]);
      }
      pixels *= dims[d];
    }
    rank = static_cast<int>(counts.size());
    if (rank > kMostDims || count * channels > INT32_MAX) return false;
    for (int d = 0; d < rank; ++d) {
      along[d] = Divisor(counts[d]);
      step[d] = steps[d] * channels;
      taken[d] = static_cast<uint32_t>(counts[d]);
    }
    return true;
  }

  COMPTRAIN_HD int64_t Place(uint32_t pixel, uint32_t channel) const {
    int64_t at = channel;
    for (int d = 0; d < rank; ++d) {
      const uint32_t outside = along[d].Small(pixel);
      at += (pixel - outside * taken[d]) * step[d];
      pixel = outside;
    }
    return at;
  }
  // The value of that number in the sample.
  COMPTRAIN_HD int64_t Place(uint32_t number) const {
    const uint32_t pixel = by_channels.Small(number);
    return Place(pixel, number - pixel * static_cast<uint32_t>(channels));
  }
};

template <class T>
__device__ float FiniteOrZero(const T* x, int64_t i) {
  const float v = ToFloat(x[i]);
  return isfinite(v) ? v : 0;
}

struct SampleJob {
  TensorOnGpu of;
  SampledPixels all, by_channel;
  const void* x;
  Scratch* scratch;
  uint8_t* stream;
};

template <class T>
__device__ void SampleAll(const SampleJob& job, uint8_t* memory) {
  auto* const sums = reinterpret_cast<SampleSums*>(memory);
  const int me = static_cast<int>(threadIdx.x);
  const T* const x = static_cast<const T*>(job.x);
  const double first = FiniteOrZero(x, 0);
  SampleSums mine;
  const auto values = static_cast<int>(job.all.count * job.all.channels);
  const int part = (values + kSampleBlocks - 1) / kSampleBlocks;
  const int begin = static_cast<int>(blockIdx.x) * part;
  const int end = values - begin < part ? values : begin + part;
  for (int i = begin + me; i < end; i += kAtOnce * kSampleThreads) {
    float v[kAtOnce];
    COMPTRAIN_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const int at = i + k * kSampleThreads;
      v[k] = at < end ? FiniteOrZero(x, job.all.Place(at)) : 0;
    }
    COMPTRAIN_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      if (i + k * kSampleThreads < end) {
        mine.Add(v[k], CountsAsZero(v[k]), first);
      }
    }
  }
  sums[me] = mine;
  AddUp(sums, kSampleThreads);
  if (me == 0) job.scratch->sample[blockIdx.x] = sums[0];
}

struct ChannelSums {
  double sum = 0, squares = 0;

  COMPTRAIN_HD void Add(double v) {
    sum += v;
    squares += v * v;
  }
};

// Of some channels that lie side by side: threads share their pixels.
template <class T>
__device__ void SampleChannels(const SampleJob& job, int64_t first,
                               uint8_t* memory) {
  auto* const sums = reinterpret_cast<ChannelSums*>(memory);
  const T* const x = static_cast<const T*>(job.x);
  const int64_t left = job.of.last - first;
  const auto pixels = static_cast<int>(job.by_channel.count);
  const int width = left < kMostWidth ? static_cast<int>(left) : kMostWidth;
  const int me = static_cast<int>(threadIdx.x);
  const int part = me / width, parts = kSampleThreads / width;
  const auto channel = static_cast<uint32_t>(first + me % width);
  ChannelSums mine;
  for (int i = part; part < parts && i < pixels; i += kAtOnce * parts) {
    float v[kAtOnce];
    COMPTRAIN_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const int pixel = i + k * parts;
      v[k] = pixel < pixels
                 ? FiniteOrZero(x, job.by_channel.Place(pixel, channel))
                 : 0;
    }
    COMPTRAIN_UNROLL
    for (int k = 0; k < kAtOnce; ++k) mine.Add(v[k]);
  }
  sums[me] = mine;
  __syncthreads();
  if (me >= width) return;
  for (int k = 1; k < parts; ++k) {
    mine.sum += sums[me + k * width].sum;
    mine.squares += sums[me + k * width].squares;
  }
  const uint16_t centre =
      CentreOf(mine.sum, mine.squares, static_cast<double>(pixels));
  uint8_t* const to = job.stream + job.of.centres_at + 2 * channel;
  to[0] = static_cast<uint8_t>(centre);
  to[1] = static_cast<uint8_t>(centre >> 8);
}

// T: of the values.
template <class T>
__global__ void __launch_bounds__(kSampleThreads) Sample(SampleJob job) {
  uint8_t* const memory = SharedMemory();
  if (blockIdx.x == 0) {
    static_assert(kSampleThreads >= kScales, "a scale a thread");
    if (threadIdx.x < kScales) job.scratch->groups_with[threadIdx.x] = 0;
    if (threadIdx.x == 0) job.scratch->blocks_done = 0;
  }
  if (blockIdx.x < kSampleBlocks) {
    SampleAll<T>(job, memory);
  } else {
    SampleChannels<T>(job, int64_t{blockIdx.x - kSampleBlocks} * kMostWidth,
                      memory);
  }
}

}  // namespace

Status SampleTensor(const FixedRateTensor& of, const FixedRateInput& in,
                    Scratch* scratch, uint8_t* stream,
                    CUstream_st* cuda_stream) {
  const TensorOnGpu tensor(of);
  Status s;
  if (in.bound.of_range) {
    s = CheckCuda(kFixedRate,
                  cudaMemsetAsync(scratch, 0, sizeof *scratch, cuda_stream),
                  "clearing");
    if (s.ok()) {
      const int64_t n = ElementsOf(of.dims);
      s = Launch(kFixedRate, "the range", FindRange,
                 std::min<int64_t>(kRangeBlocks, CeilDiv(n, kRangeThreads)),
                 kRangeThreads, 0, cuda_stream, in.x, of.dtype, n, scratch);
    }
    if (!s.ok()) return s;
  }
  SampleJob sample = {tensor, {}, {}, in.x, scratch, stream};
  const int64_t of_channels = kSampleOfChannel * of.dims.back();
  if (!sample.all.Set(of.dims, kSample) ||
      !sample.by_channel.Set(of.dims, std::max(kSample, of_channels))) {
    return Status::Invalid(std::string(kFixedRate) +
                           ": a tensor has too many dimensions, or too many "
                           "channels, got " +
                           std::to_string(of.dims.size()) + " and " +
                           std::to_string(of.dims.back()));
  }
  const int64_t blocks =
      kSampleBlocks +
      (tensor.has_centres ? CeilDiv(tensor.last, kMostWidth) : 0);
  WithStorageType(of.dtype, [&](auto type) {
    s = Launch(kFixedRate, "the sample", Sample<decltype(type)>, blocks,
               kSampleThreads, kSampleThreads * sizeof(SampleSums), cuda_stream,
               sample);
  });
  return s;
}

}  // namespace comptrain::gpu
