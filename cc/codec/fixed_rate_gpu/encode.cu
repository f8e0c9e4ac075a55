// A stream in one pass, by columns where they are even; else its scales first,
// then its words.
#include <cfloat>

#include "cc/codec/fixed_rate_gpu/column.h"
#include "cc/codec/fixed_rate_gpu/gpu.h"
#include "cc/codec/fixed_rate_gpu/scratch.h"
#include "cc/codec/stream/quantize.h"

namespace comptrain {
namespace {

using gpu::Column;
using gpu::kColumnThreads;
using gpu::kPacked;
using gpu::kScales;
using gpu::TensorOnGpu;

// --- Scales -----------------------------------------------------------------

struct EncodeJob {
  TensorOnGpu of;
  const void* x;
  uint8_t* stream;
  float* state;  // after the sample
  gpu::Scratch* scratch;
  bool group_statistics;
};

// Counts the scales of a block's groups; the last block to end adds up what all
// have. here: whether the thread has a group.
__device__ void CountScales(const EncodeJob& job, bool here, uint8_t code) {
  if (!job.group_statistics) return;
  __shared__ uint32_t counts[kScales];
  __shared__ GroupSums sums[kScales];
  __shared__ bool is_last;
  static_assert(kScales == kColumnThreads, "a scale a thread");
  const auto me = static_cast<int>(threadIdx.x);
  counts[me] = 0;
  __syncthreads();
  if (here) atomicAdd(&counts[code], 1u);
  __syncthreads();
  if (counts[me] != 0) atomicAdd(&job.scratch->groups_with[me], counts[me]);
  __threadfence();
  __syncthreads();
  if (me == 0) {
    is_last = atomicAdd(&job.scratch->blocks_done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  GroupSums mine;
  // By an atomic operation, which sees those of all blocks.
  mine.Add(static_cast<uint8_t>(me),
           atomicAdd(&job.scratch->groups_with[me], 0u));
  sums[me] = mine;
  gpu::AddUp(sums, kScales);
  if (me == 0) sums[0].Write(job.state[kBoundUsed], job.state);
}

struct Ends {
  float smallest = FLT_MAX, largest = -FLT_MAX;  // of no finite values

  COMPTRAIN_HD void Add(float v) {
    const bool finite = std::fabs(v) <= FLT_MAX;
    const float low = finite ? v : FLT_MAX, high = finite ? v : -FLT_MAX;
    smallest = low < smallest ? low : smallest;
    largest = high > largest ? high : largest;
  }
};

__device__ uint8_t ScaleCodeOf(const EncodeJob& job, const Ends& ends,
                               float centre) {
  const float above = ends.largest - centre, below = centre - ends.smallest;
  const float reach =
      StepOfScale1(job.state[kBoundUsed]) * job.of.coding.reach();
  return ScaleCodeFor((above < below ? below : above) / reach);
}

// A group a thread.
__global__ void __launch_bounds__(kColumnThreads) WriteScales(EncodeJob job) {
  const gpu::RowsOnGpu& rows = job.of.scales;
  const int64_t group = gpu::ColumnOfThread();
  const bool here = group < rows.columns;
  uint8_t code = 0;
  if (here) {
    int64_t at;
    const int64_t block = rows.by_row.Split(group, &at);
    Ends ends;
    for (int64_t place = at; place < rows.length; place += rows.row) {
      ends.Add(LoadFloat(job.x, job.of.dtype, block * rows.length + place));
    }
    // Groups lie within a channel, except where there are no centres.
    const float centre = job.of.Centre(job.stream, block * rows.length + at);
    code = ScaleCodeOf(job, ends, centre);
    job.stream[job.of.scales_at + group] = code;
  }
  CountScales(job, here, code);
}

// --- Words ------------------------------------------------------------------

COMPTRAIN_HD inline float InverseStepOf(uint8_t scale_code, float step) {
  return scale_code == 0 ? 0 : 1 / (ScaleOf(scale_code) * step);
}

// centre: 0 where there is none. turned: of the dither. kKnown: the value is a
// number.
template <bool kKnown, bool kMidRise>
COMPTRAIN_HD inline uint32_t CodeOf(const FixedRateCoding& coding, float x,
                                    float centre, float factor,
                                    uint32_t turned) {
  float level = (x - centre) * factor + DitherPlus(coding.zero_level(), turned);
  if (!kKnown && level != level) {
    level = static_cast<float>(coding.code_of_nan());
  }
  const float least = kMidRise ? 1 : 0;
  level = fminf(fmaxf(level, least), static_cast<float>(coding.last_code()));
  // Rounded by an addition that leaves no bits below the point.
  const uint32_t code =
      FloatBits(level + 0x1p23f) & static_cast<uint32_t>(coding.last_code());
  return kMidRise && CountsAsZero(x) ? 0 : code;
}

// centre: 0 in mid-rise streams.
template <int kBits, bool kKnown, bool kMidRise>
__device__ void WriteColumn(const EncodeJob& job, const Column& at,
                            uint8_t scale, float centre, const float* x) {
  const TensorOnGpu& of = job.of;
  const uint32_t start = DitherStart(at.number + SeedOf(job.state));
  const float factor =
      InverseStepOf(scale, StepOfScale1(job.state[kBoundUsed]));
  gpu::ColumnWords<kBits> words;
  COMPTRAIN_UNROLL
  for (int i = 0; i < kPacked; ++i) {
    const uint32_t turned = start + static_cast<uint32_t>(i) * kDitherTurn;
    words.Put(i, CodeOf<kKnown, kMidRise>(
                     of.coding, x[i], kMidRise ? 0 : centre, factor, turned));
  }
  words.Store(reinterpret_cast<uint32_t*>(job.stream) + at.word, of.words.row);
}

// Of values of which some may be no numbers.
template <int kBits>
__device__ void WriteAnyColumn(const EncodeJob& job, const Column& at,
                               uint8_t scale, float centre, const float* x) {
  if (job.of.coding.mid_rise) {
    WriteColumn<kBits, false, true>(job, at, scale, centre, x);
  } else {
    WriteColumn<kBits, false, false>(job, at, scale, centre, x);
  }
}

// A column a thread, with its scale.
template <int kBits, class T>
__global__ void __launch_bounds__(kColumnThreads) WriteColumns(EncodeJob job) {
  const TensorOnGpu& of = job.of;
  const int64_t column = gpu::ColumnOfThread();
  const bool here = column < of.words.columns;
  uint8_t scale = 0;
  if (here) {
    const Column at(of, column);
    T items[kPacked];
    gpu::LoadColumn(job.x, at, of.words.row, items);
    float x[kPacked];
    Ends ends;
    float nothing = 0;  // less where a value is not finite
    COMPTRAIN_UNROLL
    for (int i = 0; i < kPacked; ++i) {
      x[i] = ToFloat(items[i]);
      ends.smallest = fminf(ends.smallest, x[i]);
      ends.largest = fmaxf(ends.largest, x[i]);
      nothing = __fmaf_rn(x[i], 0.0f, nothing);
    }
    const bool known = nothing == 0;
    if (!known) {
      ends = Ends();
      COMPTRAIN_UNROLL
      for (int i = 0; i < kPacked; ++i) ends.Add(x[i]);
    }
    const float centre = of.Centre(job.stream, column);
    scale = ScaleCodeOf(job, ends, centre);
    job.stream[of.scales_at + column] = scale;
    if (!known) {
      WriteAnyColumn<kBits>(job, at, scale, centre, x);
    } else if (of.coding.mid_rise) {
      WriteColumn<kBits, true, true>(job, at, scale, centre, x);
    } else {
      WriteColumn<kBits, true, false>(job, at, scale, centre, x);
    }
  }
  CountScales(job, here, scale);
}

// The words of 32 values that have several scales or channels, or of which some
// are missing.
__global__ void __launch_bounds__(kColumnThreads) WriteWords(EncodeJob job) {
  const TensorOnGpu& of = job.of;
  const int64_t column = gpu::ColumnOfThread();
  if (column >= of.words.columns) return;
  const int64_t row = of.words.row;
  int64_t at;
  const int64_t block = of.words.by_row.Split(column, &at);
  const int bits = of.coding.bits, codes = 32 / bits, whole = codes * bits;
  const float step = StepOfScale1(job.state[kBoundUsed]);
  uint32_t turned =
      DitherStart(of.words.NumberOf(block, at) + SeedOf(job.state));
  uint32_t words[8] = {};
  for (int i = 0; i < kPacked && at + i * row < of.words.length; ++i) {
    const int64_t place = block * of.words.length + at + i * row;
    const uint8_t scale = job.stream[of.scales_at + of.scales.GroupOf(place)];
    const auto code_of =
        of.coding.mid_rise ? CodeOf<false, true> : CodeOf<false, false>;
    const uint32_t code = code_of(of.coding, LoadFloat(job.x, of.dtype, place),
                                  of.Centre(job.stream, place),
                                  InverseStepOf(scale, step), turned);
    turned += kDitherTurn;
    if (i < whole) {
      words[i / codes] |= code << (i % codes * bits);
      continue;
    }
    for (int w = 0; w < bits; ++w) {
      words[w] |= (code >> w & 1) << (codes * bits + i - whole);
    }
  }
  auto* const to = reinterpret_cast<uint32_t*>(job.stream);
  for (int w = 0; w < bits; ++w) {
    to[(block * bits + w) * row + at] = words[w];
  }
}

}  // namespace

Status GpuFixedRateEncode(const FixedRateTensor& of, const FixedRateInput& in,
                          void* scratch, const FixedRateOutput& out,
                          CUstream_st* cuda_stream) {
  auto* const found = static_cast<gpu::Scratch*>(scratch);
  Status s = gpu::SampleTensor(of, in, found, out, cuda_stream);
  if (!s.ok()) return s;
  const TensorOnGpu tensor(of);
  const EncodeJob job = {tensor,    in.x,  out.stream,
                         out.state, found, in.group_statistics};
  if (tensor.even()) {
    return gpu::WithBitsAndType(of, [&](auto bits, auto type) {
      return gpu::LaunchColumns(
          "columns", WriteColumns<decltype(bits)::value, decltype(type)>,
          tensor.words.columns, cuda_stream, job);
    });
  }
  s = gpu::LaunchColumns("scales", WriteScales, tensor.scales.columns,
                         cuda_stream, job);
  if (!s.ok()) return s;
  return gpu::LaunchColumns("words", WriteWords, tensor.words.columns,
                            cuda_stream, job);
}

}  // namespace comptrain
