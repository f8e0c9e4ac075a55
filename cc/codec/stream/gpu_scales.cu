#include "cc/codec/stream/gpu_scales.h"

#include <cuda_runtime.h>

#include "cc/codec/common/gpu_items.h"
#include "cc/codec/stream/quantizer.h"
#include "cc/codec/stream/scale_items.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {
namespace {

constexpr char kOnGpu[] = "scales on a GPU";
static_assert(gpu::kItemThreads == kPartialSums, "a block adds up as a CPU");

struct Scratch {
  ChannelMoments* moments;
  int8_t* exponents;
  int16_t* centres;
  size_t bytes;

  Scratch(const void* scratch, int64_t channels) {
    const uint64_t c = static_cast<uint64_t>(channels);
    const uint64_t at_exponents = AlignSection(sizeof(ChannelMoments) * c);
    const uint64_t at_centres = AlignSection(at_exponents + c);
    auto* base = static_cast<uint8_t*>(const_cast<void*>(scratch));
    moments = reinterpret_cast<ChannelMoments*>(base);
    exponents = reinterpret_cast<int8_t*>(base + at_exponents);
    centres = reinterpret_cast<int16_t*>(base + at_centres);
    bytes = AlignSection(at_centres + 2 * c);
  }
};

// Channels that are judged apart.
int64_t OwnChannels(int64_t n, int64_t channels) {
  return HasOwnScales(n, channels) ? channels : 1;
}

// Item: a channel.
template <class T>
struct SampleChannel {
  SampledRows rows;
  int64_t channels;
  const T* x;
  ChannelMoments* moments;

  COMPTRAIN_HD void operator()(int64_t c) const {
    moments[c] = Of<float>(c);
    if (!moments[c].IsFinite()) moments[c] = Of<double>(c);
  }
  template <class Sum>
  COMPTRAIN_HD ChannelMoments Of(int64_t c) const {
    Sum sum = 0, sum_sq = 0;
    int32_t nonzero = 0;
    const float first = FiniteOrZero(ToFloat(x[rows.Row(0) * channels + c]));
    for (int64_t i = 0; i < rows.count; ++i) {
      AddToSums(ToFloat(x[rows.Row(i) * channels + c]), first, &sum, &sum_sq,
                &nonzero);
    }
    return MomentsOf(sum, sum_sq, nonzero, first, rows.count);
  }
};

// The sum over the block, in the CPU's order; valid in thread 0.
__device__ double BlockSum(double v) {
  __shared__ double sums[kPartialSums];
  const int me = threadIdx.x;
  __syncthreads();
  sums[me] = v;
  __syncthreads();
  for (int half = kPartialSums / 2; half > 0; half /= 2) {
    if (me < half) sums[me] += sums[me + half];
    __syncthreads();
  }
  return sums[0];
}

// One block.
__global__ void __launch_bounds__(kPartialSums)
    AddUpChannels(int64_t channels, const ChannelMoments* moments,
                  GpuScaleTotals* totals) {
  double variance = 0, nonzero = 0;
  for (int64_t c = threadIdx.x; c < channels; c += kPartialSums) {
    variance += moments[c].variance;
    nonzero += moments[c].nonzero;
  }
  variance = BlockSum(variance);
  nonzero = BlockSum(nonzero);
  if (threadIdx.x != 0) return;
  totals->sigma = sqrt(variance / static_cast<double>(channels));
  totals->mean_square = nonzero > 0 ? variance / nonzero : 0;
  totals->rms_bound_over_eb = 1;
  totals->has_exponents = totals->has_centres = 0;
}

// One block.
__global__ void __launch_bounds__(kPartialSums)
    ChooseScales(Quantizer stream, int64_t channels,
                 const ChannelMoments* moments, int8_t* exponents,
                 int16_t* centres, GpuScaleTotals* totals) {
  const double mean_square = totals->mean_square;
  double sum = 0, weight = 0;
  int scaled = 0, centred = 0;
  for (int64_t c = threadIdx.x; c < channels; c += kPartialSums) {
    const ChannelMoments m = moments[c];
    const int exponent = ExponentOf(m, mean_square, stream);
    const int centre = CentreOf(m, exponent, stream);
    exponents[c] = static_cast<int8_t>(exponent);
    centres[c] = static_cast<int16_t>(centre);
    scaled |= exponent != 0;
    centred |= centre != 0;
    sum += m.nonzero * ldexp(1.0, 2 * exponent);
    weight += m.nonzero;
  }
  scaled = __syncthreads_and(scaled == 0) ? 0 : 1;
  centred = __syncthreads_and(centred == 0) ? 0 : 1;
  sum = BlockSum(sum);
  weight = BlockSum(weight);
  if (threadIdx.x != 0) return;
  totals->has_exponents = scaled;
  totals->has_centres = centred;
  totals->rms_bound_over_eb = weight > 0 ? sqrt(sum / weight) : 1;
}

}  // namespace

size_t GpuScalesScratchBytes(int64_t channels) {
  return Scratch(nullptr, channels).bytes;
}

Status GpuSampleChannels(const TensorIn& x_dev, int64_t channels,
                         void* scratch_dev, GpuScaleTotals* totals,
                         CUstream_st* cuda_stream) {
  channels = OwnChannels(x_dev.n, channels);
  const Scratch at(scratch_dev, channels);
  const SampledRows rows(x_dev.n / channels, channels);
  const Status s = gpu::ForTypedItems(
      "sampling channels", x_dev.dtype, channels,
      [&](auto type) {
        using T = decltype(type);
        return SampleChannel<T>{rows, channels,
                                static_cast<const T*>(x_dev.data), at.moments};
      },
      cuda_stream);
  if (!s.ok()) return s;
  return gpu::Launch(kOnGpu, "adding up channels", AddUpChannels, 1,
                     kPartialSums, 0, cuda_stream, channels, at.moments,
                     totals);
}

Status GpuOwnScales(const EncodeParams& params, void* scratch_dev,
                    GpuScaleTotals* totals, CUstream_st* cuda_stream) {
  if (!HasOwnScales(params.n, params.channels)) return {};
  const Scratch at(scratch_dev, params.channels);
  return gpu::Launch(kOnGpu, "choosing scales", ChooseScales, 1, kPartialSums,
                     0, cuda_stream, QuantizerOf(params), params.channels,
                     at.moments, at.exponents, at.centres, totals);
}

ChannelScales GpuScalesIn(const EncodeParams& params, const void* scratch_dev) {
  if (!HasOwnScales(params.n, params.channels)) return {};
  const Scratch at(scratch_dev, params.channels);
  return {at.exponents, at.centres};
}

}  // namespace comptrain
