// Internal: what the CUDA sources of the codecs share. plane and zvc write
// items (tiles, chunks) of so many words each, an item a warp; a directory of
// u16 with the words of each item, and a table of where every range of items
// starts.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <string>

#include "cc/codec/common/bits.h"
#include "cc/codec/common/gpu_launch.h"
#include "cc/codec/common/half.h"
#include "cc/codec/common/status.h"
#include "cc/codec/stream/check_params.h"
#include "cc/codec/stream/stream.h"
#include "cc/codec/stream/gpu.h"
#include "cc/codec/stream/quantize.h"
#include "cc/codec/stream/quantizer.h"

namespace comptrain::gpu {

constexpr int kWarps = 4;  // items a block; divides the items of a range
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kScanThreads = 1024;
constexpr int kHeadThreads = 256;

struct BlockSums {
  uint64_t nonzero;
  double sum, sum_sq;
};

// Sections of scratch, in bytes.
struct Scratch {
  uint64_t words, starts, sums, entries, bytes;

  Scratch(int64_t items, int64_t ranges) {
    words = 0;  // u32 a range: its payload words
    starts = AlignSection(words + 4 * static_cast<uint64_t>(ranges));
    sums = AlignSection(starts + 4 * static_cast<uint64_t>(ranges));
    entries = sums + sizeof(BlockSums) * Blocks(items);
    bytes = AlignSection(entries + 2 * static_cast<uint64_t>(items));
  }
  static uint64_t Blocks(int64_t items) {
    return (static_cast<uint64_t>(items) + kWarps - 1) / kWarps;
  }
};

// Whether the bytes can be a stream: kernels read its header unasked, and its
// payload by words. payload_offset: that of this codec's streams.
inline Status CheckStreamBytes(const char* codec, const GpuEncoded& from,
                               uint64_t payload_offset) {
  const uint64_t least = from.any_codec ? sizeof(StreamHeader) : payload_offset;
  if (from.bytes >= least && from.bytes % 4 == 0) return {};
  return Status::Damaged(
      std::string(codec) +
      ": a stream must hold header, directory and table, " +
      std::to_string(least) + " bytes, and whole words after, got " +
      std::to_string(from.bytes) + " bytes; pass the whole stream");
}

// What the decoder of a codec has to leave alone; a stream that names no codec
// is plane's, as it is on a CPU.
static __device__ inline bool IsAnothers(const uint8_t* stream,
                                         CodecId decoder) {
  const auto codec =
      static_cast<CodecId>(stream[offsetof(StreamHeader, codec)]);
  const bool named = codec == CodecId::kRans || codec == CodecId::kZvc;
  return (named ? codec : CodecId::kPlane) != decoder;
}

// Whether a header, of a codec with an error bound, is the one that the host
// expects, which knows all but coding and step; fills in these.
static __device__ inline bool OpenHeader(const StreamHeader& h,
                                         const StreamHeader& expected,
                                         Quantizer* q) {
  const uint8_t coding = h.flags & (kMidRise | kDither);
  q->coding = coding & kDither    ? Coding::kDither
              : coding & kMidRise ? Coding::kMidRise
                                  : Coding::kPlain;
  q->dtype = static_cast<DType>(expected.dtype);
  q->step = h.step;
  const StreamHeader& e = expected;
  return h.magic == e.magic && h.version == e.version && h.codec == e.codec &&
         h.dtype == e.dtype && h.n == e.n && h.channels == e.channels &&
         h.flags == (e.flags | coding) && coding != (kMidRise | kDither) &&
         h.log2_pixels == e.log2_pixels && h.total_bytes == e.total_bytes &&
         h.n_chunks == e.n_chunks && h.directory_offset == e.directory_offset &&
         h.table_offset == e.table_offset && h.step > 0;
}

// A stream as a decoder's kernel is given it.
struct Stream {
  const uint8_t* bytes;
  uint64_t n_bytes;
  StreamHeader expected;  // what the host knows of it
  bool any_codec;

  template <class T>
  __device__ const T* At(uint64_t offset) const {
    return reinterpret_cast<const T*>(bytes + offset);
  }
  __device__ uint64_t payload_words() const {
    return (n_bytes - expected.payload_offset) / 4;
  }
};

// What a decoder makes of element i of a tensor: from a code, that of value
// `number` of its stream, or from the value as it is stored.
template <class T>
struct Values {
  T* out;

  template <Coding kCoding>
  __device__ void PutCode(const Quantizer& q, int64_t i, int code,
                          uint32_t number) const {
    T value;
    FromFloat(DequantizeValue<kCoding>(q, code, number), &value);
    out[i] = value;
  }
  __device__ void Put(int64_t i, T value) const { out[i] = value; }
};
template <class T>
struct MaskedGradient {
  const T* dy;
  T* dx;

  template <Coding>
  __device__ void PutCode(const Quantizer&, int64_t i, int code,
                          uint32_t) const {
    dx[i] = code != 0 ? dy[i] : T();
  }
  __device__ void Put(int64_t i, T value) const {
    dx[i] = CountsAsZero(ToFloat(value)) ? T() : dy[i];
  }
};

// Checks and launches a decoder. Reader, made from a GpuEncoded: kId, kOnGpu;
// Check(), whether there can be such a stream; header(), all of it but what
// only the stream says; Launch<T>(stream, sink, damaged_dev, cuda_stream).
template <class Reader, class MakeSink>
Status Decode(const GpuEncoded& from, CUstream_st* cuda_stream,
              const MakeSink& make_sink) {
  Status s =
      CheckTensor(Reader::kId, from.n, from.channels, from.dtype, Isa::kScalar);
  if (!s.ok()) return s;
  const Reader reader(from);
  s = reader.Check();
  if (!s.ok()) return s;
  const Stream stream = {static_cast<const uint8_t*>(from.stream_dev),
                         from.bytes, reader.header(), from.any_codec};
  s = CheckStreamBytes(Reader::kOnGpu, from, stream.expected.payload_offset);
  if (!s.ok() || from.n == 0) return s;
  WithStorageType(from.dtype, [&](auto type) {
    s = reader.template Launch<decltype(type)>(stream, make_sink(type),
                                               from.damaged_dev, cuda_stream);
  });
  return s;
}

template <class Reader>
constexpr GpuDecoder kDecoderOf = {
    [](const GpuEncoded& from, void* out_dev, CUstream_st* cuda_stream) {
      return Decode<Reader>(from, cuda_stream, [&](auto type) {
        using T = decltype(type);
        return Values<T>{static_cast<T*>(out_dev)};
      });
    },
    [](const GpuEncoded& from, const void* dy_dev, void* dx_dev,
       CUstream_st* cuda_stream) {
      return Decode<Reader>(from, cuda_stream, [&](auto type) {
        using T = decltype(type);
        return MaskedGradient<T>{static_cast<const T*>(dy_dev),
                                 static_cast<T*>(dx_dev)};
      });
    }};

// The sums of a block's warps, each given by its lane 0, to block_sums.
template <int kBlockWarps = kWarps>
static __device__ inline void PutBlockSums(const BlockSums& of_this_warp,
                                           BlockSums* block_sums) {
  __shared__ BlockSums of_warp[kBlockWarps];
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  if (lane == 0) of_warp[warp] = of_this_warp;
  __syncthreads();
  if (threadIdx.x != 0) return;
  BlockSums all = of_warp[0];
  for (int w = 1; w < kBlockWarps; ++w) {
    all.nonzero += of_warp[w].nonzero;
    all.sum += of_warp[w].sum;
    all.sum_sq += of_warp[w].sum_sq;
  }
  block_sums[blockIdx.x] = all;
}

// One block: where each range starts, and the totals. Sums in a fixed order.
static __global__ void __launch_bounds__(kScanThreads)
    ScanRanges(int64_t ranges, const uint32_t* range_words, uint32_t* starts,
               int64_t blocks, const BlockSums* block_sums, GpuTotals* totals) {
  __shared__ uint64_t words[kScanThreads];
  __shared__ BlockSums sums[kScanThreads];
  const int me = threadIdx.x;
  const int64_t each = (ranges + kScanThreads - 1) / kScanThreads;
  const int64_t begin = me * each < ranges ? me * each : ranges;
  const int64_t end = begin + each < ranges ? begin + each : ranges;
  uint64_t mine = 0;
  for (int64_t r = begin; r < end; ++r) mine += range_words[r];
  words[me] = mine;
  BlockSums s = {0, 0, 0};
  for (int64_t b = me; b < blocks; b += kScanThreads) {
    s.nonzero += block_sums[b].nonzero;
    s.sum += block_sums[b].sum;
    s.sum_sq += block_sums[b].sum_sq;
  }
  sums[me] = s;
  __syncthreads();
  for (int d = 1; d < kScanThreads; d *= 2) {
    const uint64_t below = me >= d ? words[me - d] : 0;
    __syncthreads();
    words[me] += below;
    __syncthreads();
  }
  for (int d = kScanThreads / 2; d > 0; d /= 2) {
    if (me < d) {
      sums[me].nonzero += sums[me + d].nonzero;
      sums[me].sum += sums[me + d].sum;
      sums[me].sum_sq += sums[me + d].sum_sq;
    }
    __syncthreads();
  }
  uint64_t at = words[me] - mine;
  for (int64_t r = begin; r < end; ++r) {
    starts[r] = static_cast<uint32_t>(at);
    at += range_words[r];
  }
  if (me == kScanThreads - 1) totals->words = words[me];
  if (me == 0) {
    totals->nonzero = sums[0].nonzero;
    totals->sum = sums[0].sum;
    totals->sum_sq = sums[0].sum_sq;
  }
}

// Words of the items from `first` on and before `item`, whose entries hold them
// under `mask`.
static __device__ inline int WordsBefore(const uint16_t* entries, int64_t first,
                                         int64_t item, int mask, int lane) {
  int words = 0;
  for (int64_t i = first + lane; i < item; i += kWarpLanes) {
    words += entries[i] & mask;
  }
  return WarpSum(words);
}

// Header, directory and table with their padding: words of 4 bytes.
static __global__ void WriteHead(StreamHeader header, int64_t items,
                                 int64_t ranges, const uint16_t* entries,
                                 const uint32_t* starts, uint32_t* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t byte = 4 * i;
  if (byte >= header.payload_offset) return;
  uint32_t word = 0;
  if (byte < static_cast<int64_t>(sizeof header)) {
    memcpy(&word, reinterpret_cast<const uint8_t*>(&header) + byte, 4);
  } else if (byte < header.table_offset) {
    const int64_t item = (byte - header.directory_offset) / 2;
    if (item < items) word = entries[item];
    if (item + 1 < items)
      word |= static_cast<uint32_t>(entries[item + 1]) << 16;
  } else {
    const int64_t range = (byte - header.table_offset) / 4;
    if (range < ranges) word = starts[range];
  }
  out[i] = word;
}

// The end of the first pass: the scan of what was measured to scratch.
inline Status AddUpSizes(const char* codec, const Scratch& at, uint8_t* scratch,
                         int64_t items, int64_t ranges, GpuTotals* totals,
                         CUstream_st* cuda_stream) {
  return Launch(codec, "adding up sizes", ScanRanges, 1, kScanThreads, 0,
                cuda_stream, ranges,
                reinterpret_cast<const uint32_t*>(scratch + at.words),
                reinterpret_cast<uint32_t*>(scratch + at.starts),
                static_cast<int64_t>(Scratch::Blocks(items)),
                reinterpret_cast<const BlockSums*>(scratch + at.sums), totals);
}

// The start of the second one.
inline Status LaunchWriteHead(const char* codec, const StreamHeader& header,
                              int64_t items, int64_t ranges,
                              const uint16_t* entries, const uint32_t* starts,
                              void* out_dev, CUstream_st* cuda_stream) {
  return Launch(codec, "writing the header", WriteHead,
                CeilDiv(header.payload_offset / 4, kHeadThreads), kHeadThreads,
                0, cuda_stream, header, items, ranges, entries, starts,
                static_cast<uint32_t*>(out_dev));
}

}  // namespace comptrain::gpu
