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
using gpu::kTogether;
using gpu::Neighbours;
using gpu::TensorOnGpu;

// --- Scales -----------------------------------------------------------------

struct EncodeJob {
  TensorOnGpu of;
  const void* x;
  uint8_t* stream;
  gpu::StateJob state;
  bool group_statistics;
};

// What codes depend on, as the blocks of the first kernel after the sample find
// it, each for itself: that takes less time than a kernel of its own.
__device__ const float* FindBound(const gpu::StateJob& job) {
  __shared__ float next[kStateFields];
  if (threadIdx.x == 0) job.Write(WriteBound, next);
  __syncthreads();
  return next;
}

// By one thread, once codes are written.
__device__ void WriteStateOnce(const gpu::StateJob& job) {
  if (blockIdx.x == 0 && threadIdx.x == 0) job.Write(WriteState, job.after);
}

// Counts the scales of a block's groups; the last block to end adds up what all
// have. here: whether the thread has groups.
template <int kGroups>
__device__ void CountScales(const EncodeJob& job, bool here,
                            const uint8_t (&codes)[kGroups]) {
  if (!job.group_statistics) return;
  __shared__ uint32_t counts[kScales];
  __shared__ GroupSums sums[kScales];
  __shared__ bool is_last;
  static_assert(kScales == kColumnThreads, "a scale a thread");
  gpu::Scratch* const scratch = job.state.scratch;
  const auto me = static_cast<int>(threadIdx.x);
  counts[me] = 0;
  __syncthreads();
  for (int i = 0; here && i < kGroups; ++i) atomicAdd(&counts[codes[i]], 1u);
  __syncthreads();
  if (counts[me] != 0) atomicAdd(&scratch->groups_with[me], counts[me]);
  __threadfence();
  __syncthreads();
  if (me == 0) {
    is_last = atomicAdd(&scratch->blocks_done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  GroupSums mine;
  // By an atomic operation, which sees those of all blocks.
  mine.Add(static_cast<uint8_t>(me), atomicAdd(&scratch->groups_with[me], 0u));
  sums[me] = mine;
  gpu::AddUp(sums, kScales);
  if (me == 0) sums[0].Write(job.state.after[kBoundUsed], job.state.after);
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

__device__ uint8_t ScaleCodeOf(const EncodeJob& job, const float* state,
                               const Ends& ends, float centre) {
  const float above = ends.largest - centre, below = centre - ends.smallest;
  const float reach = StepOfScale1(state[kBoundUsed]) * job.of.coding.reach();
  return ScaleCodeFor((above < below ? below : above) / reach);
}

// A group a thread.
__global__ void __launch_bounds__(kColumnThreads) WriteScales(EncodeJob job) {
  const gpu::RowsOnGpu& rows = job.of.scales;
  const float* const state = FindBound(job.state);
  const int64_t group = gpu::ColumnOfThread<1>();
  const bool here = group < rows.columns;
  uint8_t code[1] = {};
  if (here) {
    int64_t at;
    const int64_t block = rows.by_row.Split(group, &at);
    Ends ends;
    for (int64_t place = at; place < rows.length; place += rows.row) {
      ends.Add(LoadFloat(job.x, job.of.dtype, block * rows.length + place));
    }
    // Groups lie within a channel, except where there are no centres.
    const float centre = job.of.Centre(job.stream, block * rows.length + at);
    code[0] = ScaleCodeOf(job, state, ends, centre);
    job.stream[job.of.scales_at + group] = code[0];
  }
  WriteStateOnce(job.state);
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
// x: gives each value, as a float.
template <int kBits, bool kKnown, bool kMidRise, class Values>
__device__ void WriteCodes(const EncodeJob& job, const float* state,
                           const Column& at, uint8_t scale, float centre,
                           const Values& x) {
  const TensorOnGpu& of = job.of;
  const uint32_t start = DitherStart(at.number + SeedOf(state));
  const float factor = InverseStepOf(scale, StepOfScale1(state[kBoundUsed]));
  gpu::ColumnWords<kBits> words;
  COMPTRAIN_UNROLL
  for (int i = 0; i < kPacked; ++i) {
    const uint32_t turned = start + static_cast<uint32_t>(i) * kDitherTurn;
    words.Put(i, CodeOf<kKnown, kMidRise>(
                     of.coding, x(i), kMidRise ? 0 : centre, factor, turned));
  }
  words.Store(reinterpret_cast<uint32_t*>(job.stream) + at.word, of.words.row);
}

// The scale of the j-th of a thread's columns, which it writes with its words.
template <int kBits, class T>
__device__ uint8_t WriteColumn(const EncodeJob& job, const float* state,
                               const Column& at, Neighbours<T>* items, int j) {
  const TensorOnGpu& of = job.of;
  const auto x = [&](int i) { return ToFloat(items[i].Of(j)); };
  Ends ends;
  float nothing = 0;  // less where a value is not finite
  COMPTRAIN_UNROLL
  for (int i = 0; i < kPacked; ++i) {
    ends.smallest = fminf(ends.smallest, x(i));
    ends.largest = fmaxf(ends.largest, x(i));
    nothing = __fmaf_rn(x(i), 0.0f, nothing);
  }
  const bool known = nothing == 0;
  if (!known) {
    ends = Ends();
    COMPTRAIN_UNROLL
    for (int i = 0; i < kPacked; ++i) ends.Add(x(i));
  }
  const float centre = of.Centre(job.stream, at.column);
  const uint8_t scale = ScaleCodeOf(job, state, ends, centre);
  job.stream[of.scales_at + at.column] = scale;
  COMPTRAIN_UNROLL
  for (int i = 0; i < kPacked; ++i) items[i].Forget();
  if (of.coding.mid_rise) {
    known ? WriteCodes<kBits, true, true>(job, state, at, scale, centre, x)
          : WriteCodes<kBits, false, true>(job, state, at, scale, centre, x);
  } else {
    known ? WriteCodes<kBits, true, false>(job, state, at, scale, centre, x)
          : WriteCodes<kBits, false, false>(job, state, at, scale, centre, x);
  }
  return scale;
}

template <int kBits, class T>
__global__ void __launch_bounds__(kColumnThreads) WriteColumns(EncodeJob job) {
  const TensorOnGpu& of = job.of;
  const int64_t column = gpu::ColumnOfThread<kTogether<T>>();
  const bool here = column < of.words.columns;
  const Column first(of, here ? column : 0);
  Neighbours<T> items[kPacked];
  // Asked for before the bound is found.
  gpu::LoadColumns(job.x, first, of.words.row, items);
  const float* const state = FindBound(job.state);
  uint8_t scales[kTogether<T>] = {};
  COMPTRAIN_UNROLL
  for (int j = 0; here && j < kTogether<T>; ++j) {
    scales[j] = WriteColumn<kBits>(job, state, first.Beside(j), items, j);
  }
  WriteStateOnce(job.state);
  CountScales(job, here, scales);
}

// The words of 32 values that have several scales or channels, or of which some
// are missing.
__global__ void __launch_bounds__(kColumnThreads) WriteWords(EncodeJob job) {
  const TensorOnGpu& of = job.of;
  const float* const state = job.state.after;
  const int64_t column = gpu::ColumnOfThread<1>();
  if (column >= of.words.columns) return;
  const int64_t row = of.words.row;
  int64_t at;
  const int64_t block = of.words.by_row.Split(column, &at);
  const int bits = of.coding.bits, codes = 32 / bits, whole = codes * bits;
  const float step = StepOfScale1(state[kBoundUsed]);
  uint32_t turned = DitherStart(of.words.NumberOf(block, at) + SeedOf(state));
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
  Status s = gpu::SampleTensor(of, in, found, out.stream, cuda_stream);
  if (!s.ok()) return s;
  const TensorOnGpu tensor(of);
  const StateRule rule = {in.bound, of.coding.mid_rise,
                          of.coding.StreamBytes(of.dims)};
  const EncodeJob job = {tensor,
                         in.x,
                         out.stream,
                         {rule, in.state, found, out.state},
                         in.group_statistics};
  if (tensor.even()) {
    return gpu::WithBitsAndType(of, [&](auto bits, auto type) {
      return gpu::LaunchColumns(
          "columns", WriteColumns<decltype(bits)::value, decltype(type)>,
          tensor.words.columns, kTogether<decltype(type)>, cuda_stream, job);
    });
  }
  s = gpu::LaunchColumns("scales", WriteScales, tensor.scales.columns, 1,
                         cuda_stream, job);
  if (!s.ok()) return s;
  return gpu::LaunchColumns("words", WriteWords, tensor.words.columns, 1,
                            cuda_stream, job);
}

}  // namespace comptrain
