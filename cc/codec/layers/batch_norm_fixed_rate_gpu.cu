// From the words of a stream, so that the decoded input is never a tensor: by
// columns where they are even, else value after value.
#include "cc/codec/common/bits.h"
#include "cc/codec/common/gpu_launch.h"
#include "cc/codec/fixed_rate_gpu/column.h"
#include "cc/codec/layers/batch_norm_gpu.h"
#include "cc/codec/layers/batch_norm_gpu_items.h"
#include "cc/codec/layers/column_shares.h"

namespace comptrain {
namespace {

using gpu::Column;
using gpu::kColumnThreads;
using gpu::kPacked;
using gpu::kTogether;
using gpu::Neighbours;
using gpu::StreamOnGpu;

constexpr int kFinishRows = 128, kFinishChannels = 8;
constexpr int kAtOnce = 8;  // sums that a thread asks for before it uses one
static_assert(ColumnShares::kThreads == kColumnThreads, "a block's");

struct BatchNormJob {
  StreamOnGpu stream;
  ColumnShares shares;
  const void* dy;
  const float* mean;
  BatchNormSum* sums;         // [shares.parts][channels]
  const float* coefficients;  // see FinishBatchNorm
  void* dx;
};

// Adds up what the threads of a block have for each of their channels, and
// writes it.
template <int kEach>
__device__ void WriteSums(const BatchNormJob& job,
                          const BatchNormSum (&mine)[kEach]) {
  __shared__ BatchNormSum of_threads[kColumnThreads][kEach];
  const ColumnShares& shares = job.shares;
  const auto me = static_cast<int>(threadIdx.x);
  const int lane = me / shares.width;
  for (int j = 0; j < kEach; ++j) of_threads[me][j] = mine[j];
  int half = kColumnThreads / 2;
  while (half >= shares.lanes) half /= 2;
  for (; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half && lane + half < shares.lanes) {
      for (int j = 0; j < kEach; ++j) {
        of_threads[me][j].Add(of_threads[me + half * shares.width][j]);
      }
    }
  }
  const int64_t part = blockIdx.x / shares.strips;
  const int64_t channel = blockIdx.x % shares.strips * shares.width + me;
  if (lane != 0 || channel >= shares.channels) return;
  for (int j = 0; j < kEach; ++j) {
    job.sums[(part * shares.channels + channel) * kEach + j] =
        of_threads[me][j];
  }
}

template <int kBits, class T>
__global__ void __launch_bounds__(kColumnThreads, 3)
    AddColumns(BatchNormJob job) {
  constexpr int kEach = kTogether<T>;
  const ColumnShares& shares = job.shares;
  const gpu::TensorOnGpu& of = job.stream.of;
  const auto me = static_cast<int>(threadIdx.x);
  const int lane = me / shares.width;
  const int64_t part = blockIdx.x / shares.strips;
  const int64_t channel =
      blockIdx.x % shares.strips * shares.width + me % shares.width;
  BatchNormSum mine[kEach];
  if (lane < shares.lanes && channel < shares.channels) {
    const int64_t step = shares.parts * shares.lanes * shares.channels;
    int64_t number = (part * shares.lanes + lane) * shares.channels + channel;
    for (; number < shares.columns; number += step) {
      const Column first(of, number * kEach);
      Neighbours<T> dy[kPacked];
      gpu::LoadColumns(job.dy, first, of.words.row, dy);
      COMPTRAIN_UNROLL
      for (int j = 0; j < kEach; ++j) {
        const Column at = first.Beside(j);
        const float width = job.stream.StepOfGroup(at.column);
        const float mean = job.mean[channel * kEach + j];
        const float shift = of.Centre(job.stream.data, at.column) - mean;
        float sum = 0, off = 0, sum_x = 0;
        gpu::ForLevels<kBits>(
            job.stream, at, [&](int i, float level, bool is_zero) {
              const float g = ToFloat(dy[i].Of(j));
              sum += g;
              const float x_less_mean =
                  is_zero ? -mean : __fmaf_rn(level, width, shift);
              off += x_less_mean;
              sum_x = __fmaf_rn(g, x_less_mean, sum_x);
            });
        mine[j].Add({sum, off, sum_x});
      }
    }
  }
  WriteSums(job, mine);
}

// A block adds up the rows of sums of some channels.
__global__ void __launch_bounds__(kFinishRows* kFinishChannels)
    Finish(FinishBatchNorm finish, BatchNormSum* sums, int64_t rows) {
  __shared__ BatchNormSum of_rows[kFinishRows][kFinishChannels];
  const int lane = static_cast<int>(threadIdx.x) % kFinishChannels;
  const int part = static_cast<int>(threadIdx.x) / kFinishChannels;
  const int64_t c = int64_t{blockIdx.x} * kFinishChannels + lane;
  BatchNormSum mine;
  if (c < finish.channels) {
    for (int64_t row = part; row < rows; row += kAtOnce * kFinishRows) {
      BatchNormSum of_row[kAtOnce];
      COMPTRAIN_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int64_t at = row + i * kFinishRows;
        if (at < rows) of_row[i] = sums[at * finish.channels + c];
      }
      COMPTRAIN_UNROLL
      for (int i = 0; i < kAtOnce; ++i) mine.Add(of_row[i]);
    }
  }
  of_rows[part][lane] = mine;
  for (int half = kFinishRows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (part < half) of_rows[part][lane].Add(of_rows[part + half][lane]);
  }
  if (part != 0 || c >= finish.channels) return;
  sums[c] = of_rows[0][lane];  // this block's alone
  finish(c);
}

template <int kBits, class T>
__global__ void __launch_bounds__(kColumnThreads, 4) WriteDx(BatchNormJob job) {
  const gpu::TensorOnGpu& of = job.stream.of;
  const int64_t column = gpu::ColumnOfThread<kTogether<T>>();
  if (column >= of.words.columns) return;
  const int64_t row = of.words.row, channels = of.last;
  const Column first(of, column);
  Neighbours<T> gradients[kPacked];  // dy, then dx
  gpu::LoadColumns(job.dy, first, row, gradients);
  const int64_t first_channel = of.ChannelOf(column);
  gpu::ColumnsOut<T> out(job.dx, first, row);
  COMPTRAIN_UNROLL
  for (int j = 0; j < kTogether<T>; ++j) {
    const Column at = first.Beside(j);
    const int64_t c = first_channel + j;
    const float scale = job.coefficients[c], mean = job.mean[c];
    const float shift = job.coefficients[channels + c];
    const float slope = job.coefficients[2 * channels + c];
    // dx = scale dy + of_level level + rest, of zeros scale dy + rest_of_zero.
    const float of_level = -scale * slope * job.stream.StepOfGroup(at.column);
    const float centre = of.Centre(job.stream.data, at.column);
    const float rest = -scale * (shift + (centre - mean) * slope);
    const float rest_of_zero = -scale * (shift - mean * slope);
    gpu::ForLevels<kBits>(
        job.stream, at, [&](int i, float level, bool is_zero) {
          const float other =
              is_zero ? rest_of_zero : __fmaf_rn(level, of_level, rest);
          T dx;
          FromFloat(__fmaf_rn(scale, ToFloat(gradients[i].Of(j)), other), &dx);
          gradients[i].Set(j, dx);
          out.Put(j, gradients[i]);
        });
  }
}

// X of batch_norm_items.h.
struct Decoded {
  StreamOnGpu stream;

  COMPTRAIN_HD float operator()(int64_t i) const { return stream.ValueAt(i); }
};

constexpr char kWho[] = "batch normalization on a GPU";

}  // namespace

Status GpuBatchNormGradientOfFixedRate(const FixedRateStream& stream,
                                       const void* dy,
                                       const BatchNormChannels& of,
                                       void* scratch, const NormGradients& out,
                                       CUstream_st* cuda_stream) {
  const StreamOnGpu from(stream);
  const int64_t n = ElementsOf(stream.of.dims);
  if (!ColumnShares::Fit(from.of)) {
    Status s;
    WithStorageType(stream.of.dtype, [&](auto type) {
      using T = decltype(type);
      s = gpu::BatchNormGradientByItems(
          gpu::BatchNormItems<T, Decoded>{{from}, static_cast<const T*>(dy), n},
          of, scratch, out, cuda_stream);
    });
    return s;
  }
  auto* const coefficients = static_cast<float*>(scratch);
  auto* const sums = reinterpret_cast<BatchNormSum*>(
      static_cast<uint8_t*>(scratch) + CoefficientBytes(of.channels));
  const ColumnShares shares(from.of);
  const BatchNormJob job = {from, shares,       dy,    of.mean,
                            sums, coefficients, out.dx};
  return gpu::WithBitsAndType(stream.of, [&](auto bits, auto type) {
    constexpr int kBits = decltype(bits)::value;
    using T = decltype(type);
    Status s = gpu::Launch(kWho, "sums", AddColumns<kBits, T>, shares.blocks,
                           kColumnThreads, 0, cuda_stream, job);
    if (!s.ok()) return s;
    s = gpu::Launch(
        kWho, "adding up", Finish, CeilDiv(of.channels, kFinishChannels),
        kFinishRows * kFinishChannels, 0, cuda_stream,
        FinishBatchNorm{sums, of.gamma, of.inv_std, n / of.channels,
                        of.channels, out.dgamma, out.dbeta, coefficients},
        sums, shares.parts);
    if (!s.ok()) return s;
    return gpu::LaunchColumns("the gradient of batch normalization",
                              WriteDx<kBits, T>, from.of.words.columns,
                              kTogether<T>, cuda_stream, job);
  });
}

}  // namespace comptrain
