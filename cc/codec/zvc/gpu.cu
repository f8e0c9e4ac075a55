// zvc on a GPU: a warp a chunk.
#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#include "cc/codec/common/bits.h"
#include "cc/codec/stream/check_params.h"
#include "cc/codec/common/half.h"
#include "cc/codec/stream/quantize.h"
#include "cc/codec/stream/gpu_kernels.h"
#include "cc/codec/zvc/gpu.h"
#include "cc/codec/zvc/layout.h"

namespace comptrain::zvc {
namespace {

using gpu::BlockSums;
using gpu::kThreads;
using gpu::kWarps;
using gpu::Stream;

static_assert(kRangeChunks % kWarps == 0, "a block's chunks are of one range");

constexpr int kWordsMask = 0xffff;  // an entry is its words
constexpr char kOnGpu[] = "zvc on a GPU";

// The bits of an element of type S.
template <class S>
using BitsOf = std::conditional_t<sizeof(S) == 4, uint32_t, uint16_t>;

template <class S>
__device__ S Value(BitsOf<S> bits) {
  S value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// --- Device: a chunk by a warp ----------------------------------------------

// Lane l has elements l, l + 32, ... of the chunk; T is uint16_t or uint32_t,
// the bits of an element.

// Warp-wide reads under way at once.
constexpr int kBatch = 8;
static_assert(kMaskWords % kBatch == 0, "a chunk is whole batches");
static_assert(kMaskWords == 2 * kWarpLanes, "a lane has two words of the mask");

// Calls body(w, v) for each 32 elements of a chunk, v this lane's (0 past the
// end), until body has seen the last valid one.
template <class T, class Body>
__device__ void ForWords(int lane, const T* x, int valid, const Body& body) {
  T v[kBatch];
  for (int w = 0; 32 * w < valid; w += kBatch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = 32 * (w + i) + lane;
      v[i] = at < valid ? x[at] : T{0};
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) body(w + i, v[i]);
  }
}

// The words of a chunk: n_words as Layout::Words has them.
template <class T>
__device__ void WriteChunk(int lane, const Layout& layout, const T* x,
                           int valid, int n_words, uint32_t* words) {
  if (n_words == 0) return;
  if (n_words == static_cast<int>(layout.RawWords(valid))) {
    T* to = reinterpret_cast<T*>(words);
    ForWords<T>(lane, x, valid, [&](int w, T v) {
      if (32 * w + lane < valid) to[32 * w + lane] = v;
    });
    if (lane == 0 && sizeof(T) == 2 && valid % 2 != 0) to[valid] = 0;
    return;
  }
  const int mask_words = static_cast<int>(CeilDiv(valid, 32));
  T* values = reinterpret_cast<T*>(words + mask_words);
  uint32_t low = 0, high = 0;  // words `lane` and `lane` + 32 of the mask
  int count = 0;
  ForWords<T>(lane, x, valid, [&](int w, T v) {
    const uint32_t mask = __ballot_sync(kAllLanes, v != 0);
    if (v != 0) values[count + PopCount(mask & BitsBelow(lane))] = v;
    if (lane == w % 32) (w < 32 ? low : high) = mask;
    count += PopCount(mask);
  });
  if (lane < mask_words) words[lane] = low;
  if (lane + 32 < mask_words) words[lane + 32] = high;
  if (lane == 0 && sizeof(T) == 2 && count % 2 != 0) values[count] = 0;
}

// Calls put(i, value) for every element; false, and nothing put, when the words
// do not add up.
template <class T, class Put>
__device__ bool ReadChunk(int lane, const Layout& layout, const uint32_t* words,
                          int n_words, int valid, const Put& put) {
  const bool odd_item = sizeof(T) == 2;
  const int raw_words = static_cast<int>(layout.RawWords(valid));
  if (n_words == 0) {
    for (int i = lane; i < valid; i += kWarpLanes) put(i, T{0});
    return true;
  }
  if (n_words == raw_words) {
    const T* from = reinterpret_cast<const T*>(words);
    if (odd_item && valid % 2 != 0 && from[valid] != 0) return false;
    ForWords<T>(lane, from, valid, [&](int w, T v) {
      if (32 * w + lane < valid) put(32 * w + lane, v);
    });
    return true;
  }
  const int mask_words = static_cast<int>(CeilDiv(valid, 32));
  if (n_words > raw_words || n_words <= mask_words) return false;
  const uint32_t low = lane < mask_words ? words[lane] : 0;
  const uint32_t high = lane + 32 < mask_words ? words[lane + 32] : 0;
  const int total = gpu::WarpSum(PopCount(low) + PopCount(high));
  if (valid % 32 != 0 && words[valid / 32] >> (valid % 32) != 0) return false;
  if (total == 0 ||
      n_words != static_cast<int>(layout.PackedWords(valid, total))) {
    return false;
  }
  const T* values = reinterpret_cast<const T*>(words + mask_words);
  if (odd_item && total % 2 != 0 && values[total] != 0) return false;
  int before = 0;
  for (int w = 0; w < mask_words; w += kBatch) {
    T v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t mask =
          __shfl_sync(kAllLanes, w + i < 32 ? low : high, (w + i) % 32);
      const bool set = mask >> lane & 1;
      v[i] = set ? values[before + PopCount(mask & BitsBelow(lane))] : T{0};
      before += PopCount(mask);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = 32 * (w + i) + lane;
      if (at < valid) put(at, v[i]);
    }
  }
  return true;
}

// --- Device ------------------------------------------------------------------

template <class S>
__global__ void __launch_bounds__(kThreads)
    MeasureChunks(Layout layout, const BitsOf<S>* x, uint16_t* entries,
                  uint32_t* range_words, BlockSums* block_sums) {
  using T = BitsOf<S>;
  const int lane = threadIdx.x % kWarpLanes;
  const int64_t chunk =
      static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpLanes;
  BlockSums sums = {};
  if (chunk < layout.chunks) {
    const int valid = layout.Valid(chunk);
    int count = 0;
    ForWords<T>(lane, x + chunk * kChunkValues, valid, [&](int, T bits) {
      count += PopCount(__ballot_sync(kAllLanes, bits != 0));
    });
    sums = {static_cast<uint64_t>(count), 0};
    if (lane == 0) {
      const uint32_t words = layout.Words(valid, count);
      entries[chunk] = static_cast<uint16_t>(words);
      atomicAdd(range_words + chunk / kRangeChunks, words);
    }
  }
  gpu::PutBlockSums(sums, block_sums);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    WriteChunks(Layout layout, const T* x, const uint16_t* entries,
                const uint32_t* starts, uint32_t* payload) {
  const int lane = threadIdx.x % kWarpLanes;
  const int64_t chunk =
      static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpLanes;
  if (chunk >= layout.chunks || entries[chunk] == 0) return;
  uint32_t* to =
      payload + starts[chunk / kRangeChunks] +
      gpu::WordsBefore<kRangeChunks>(entries, chunk, kWordsMask, lane);
  WriteChunk<T>(lane, layout, x + chunk * kChunkValues, layout.Valid(chunk),
                entries[chunk], to);
}

__device__ bool HeaderIsRight(const Stream& s, int lane) {
  return gpu::HeaderIs(gpu::HeaderWord(s.bytes, lane),
                       gpu::HeaderWord(&s.expected, lane), 0, lane) &&
         s.expected.total_bytes >= s.expected.payload_offset;
}

template <class S, class Sink>
__global__ void __launch_bounds__(kThreads)
    DecodeChunks(const __grid_constant__ Stream s, Layout layout, Sink sink,
                 uint32_t* damaged) {
  using T = BitsOf<S>;
  const int lane = threadIdx.x % kWarpLanes;
  const int64_t chunk =
      static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpLanes;
  if (chunk >= layout.chunks) return;
  if (s.any_codec && gpu::IsAnothers(s.bytes, CodecId::kZvc)) return;
  const auto* entries = s.At<uint16_t>(layout.directory);
  const auto* starts = s.At<uint32_t>(layout.table);
  const auto* payload = s.At<uint32_t>(layout.payload);
  const uint64_t payload_words = s.payload_words(gpu::StoredScales());
  const int64_t first = chunk * kChunkValues;
  const int valid = layout.Valid(chunk);
  const auto put = [&](int i, T bits) {
    sink.At(first + i).Put(Value<S>(bits));
  };

  bool good = HeaderIsRight(s, lane);
  if (good) {
    const int words = entries[chunk];
    const uint64_t from =
        static_cast<uint64_t>(starts[chunk / kRangeChunks]) +
        gpu::WordsBefore<kRangeChunks>(entries, chunk, kWordsMask, lane);
    // The last chunk of a range knows where the next one starts.
    const bool last = chunk + 1 == layout.chunks;
    const bool ends = last || (chunk + 1) % kRangeChunks == 0;
    const uint64_t end = last   ? payload_words
                         : ends ? starts[chunk / kRangeChunks + 1]
                                : from + words;
    good = from + words <= payload_words && from + words == end &&
           (chunk > 0 || from == 0);
    good =
        good && ReadChunk<T>(lane, layout, payload + from, words, valid, put);
  }
  if (good) return;
  if (lane == 0) *damaged = 1;
  ReadChunk<T>(lane, layout, nullptr, 0, valid, put);
}

// --- Host --------------------------------------------------------------------

Status CheckParams(int64_t n, int64_t channels, DType dtype) {
  const Status s = CheckTensor(CodecId::kZvc, n, channels, dtype, Isa::kScalar);
  if (!s.ok()) return s;
  const Layout layout(n, dtype);
  return CheckSize(CodecId::kZvc, n, layout.chunks, layout.payload);
}

int64_t Blocks(const Layout& layout) {
  return static_cast<int64_t>(gpu::Scratch::Blocks(layout.chunks));
}

gpu::Scratch ScratchOf(const Layout& layout) {
  return gpu::Scratch(layout.chunks, layout.ranges);
}

StreamHeader HeaderOf(DType dtype, const Layout& layout, int64_t channels,
                      uint64_t total_bytes) {
  return MakeHeader({CodecId::kZvc, dtype, layout.n, channels},
                    kLog2ChunkValues, layout.chunks, layout, total_bytes);
}

size_t ScratchBytes(const EncodeParams& p) {
  if (!CheckParams(p.n, p.channels, p.dtype).ok()) return 0;
  return ScratchOf(Layout(p.n, p.dtype)).bytes;
}

size_t StreamBytes(const EncodeParams& p, const GpuTotals& totals) {
  return Layout(p.n, p.dtype).payload + 4 * totals.words;
}

Status Measure(const EncodeParams& p, const void* x_dev, void* scratch_dev,
               GpuTotals* totals, CUstream_st* cuda_stream) {
  Status s = CheckParams(p.n, p.channels, p.dtype);
  if (!s.ok()) return s;
  const Layout layout(p.n, p.dtype);
  const gpu::Scratch at = ScratchOf(layout);
  auto* scratch = static_cast<uint8_t*>(scratch_dev);
  auto* words = reinterpret_cast<uint32_t*>(scratch + at.words);
  auto* sums = reinterpret_cast<BlockSums*>(scratch + at.sums);
  if (layout.chunks > 0) {
    s = gpu::CheckCuda(
        kOnGpu, cudaMemsetAsync(words, 0, 4 * layout.ranges, cuda_stream),
        "clearing scratch");
    if (!s.ok()) return s;
    WithStorageType(p.dtype, [&](auto type) {
      using S = decltype(type);
      s = gpu::Launch(
          kOnGpu, "counting", MeasureChunks<S>, Blocks(layout), kThreads, 0,
          cuda_stream, layout, static_cast<const BitsOf<S>*>(x_dev),
          reinterpret_cast<uint16_t*>(scratch + at.entries), words, sums);
    });
    if (!s.ok()) return s;
  }
  return gpu::AddUpSizes(kOnGpu, at, scratch, {layout.chunks, layout.ranges},
                         totals, cuda_stream);
}

Status Write(const EncodeParams& p, const void* x_dev, const void* scratch_dev,
             const GpuTotals& totals, void* out_dev, CUstream_st* cuda_stream) {
  Status s = CheckParams(p.n, p.channels, p.dtype);
  if (!s.ok()) return s;
  s = CheckWords(CodecId::kZvc, totals.words);
  if (!s.ok()) return s;
  const Layout layout(p.n, p.dtype);
  const gpu::Scratch at = ScratchOf(layout);
  const auto* scratch = static_cast<const uint8_t*>(scratch_dev);
  const auto* entries = reinterpret_cast<const uint16_t*>(scratch + at.entries);
  const auto* starts = reinterpret_cast<const uint32_t*>(scratch + at.starts);
  s = gpu::LaunchWriteHead(
      kOnGpu, HeaderOf(p.dtype, layout, p.channels, StreamBytes(p, totals)),
      {layout.chunks, layout.ranges}, {entries, starts}, out_dev, cuda_stream);
  if (!s.ok() || layout.chunks == 0) return s;
  auto* payload = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(out_dev) +
                                              layout.payload);
  WithStorageType(p.dtype, [&](auto type) {
    using T = BitsOf<decltype(type)>;
    s = gpu::Launch(kOnGpu, "writing chunks", WriteChunks<T>, Blocks(layout),
                    kThreads, 0, cuda_stream, layout,
                    static_cast<const T*>(x_dev), entries, starts, payload);
  });
  return s;
}

struct Reader {
  static constexpr CodecId kId = CodecId::kZvc;
  static constexpr const char* kOnGpu = zvc::kOnGpu;
  const GpuEncoded& from;
  const Layout layout;

  explicit Reader(const GpuEncoded& f) : from(f), layout(f.n, f.dtype) {}
  Status Check() const {
    return CheckSize(kId, from.n, layout.chunks, layout.payload);
  }
  StreamHeader header() const {
    return HeaderOf(from.dtype, layout, from.channels, from.bytes);
  }
  template <class S, class Sink>
  Status Launch(const Stream& stream, const Sink& sink, uint32_t* damaged_dev,
                CUstream_st* cuda_stream) const {
    return gpu::Launch(kOnGpu, "decoding", DecodeChunks<S, Sink>,
                       Blocks(layout), kThreads, 0, cuda_stream, stream, layout,
                       sink, damaged_dev);
  }
};

}  // namespace
}  // namespace comptrain::zvc

constexpr comptrain::GpuEncoder comptrain::kGpuZvcEncoder = {
    zvc::ScratchBytes, zvc::StreamBytes, zvc::Measure, zvc::Write};
constexpr comptrain::GpuDecoder comptrain::kGpuZvcDecoder =
    gpu::kDecoderOf<zvc::Reader>;
