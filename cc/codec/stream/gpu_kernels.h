// Internal: what the CUDA sources of the codecs share. plane and zvc write
// items (tiles, chunks) of so many words each, an item a warp; a directory of
// u16 with the words of each item, and a table of where every range of items
// starts.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstring>
#include <string>

#include "cc/codec/common/bits.h"
#include "cc/codec/common/gpu_launch.h"
#include "cc/codec/common/half.h"
#include "cc/codec/common/status.h"
#include "cc/codec/common/warp.h"
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
  uint64_t again;  // items to be encoded again
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

constexpr int kHeaderWords = sizeof(StreamHeader) / 4;
static_assert(kHeaderWords <= kWarpLanes, "a lane reads a word");
COMPTRAIN_HD constexpr uint32_t BitOfWord(size_t offset) {
  return 1u << offset / 4;
}

// Word `lane` of a header and what the host expects there: with all words of
// `free` set, by offset, these may differ.
static __device__ inline bool HeaderIs(uint32_t word, uint32_t expected,
                                       uint32_t free, int lane) {
  const bool compared = (~free & BitsBelow(kHeaderWords)) >> lane & 1;
  return __all_sync(kAllLanes, !compared || word == expected);
}
static __device__ inline uint32_t HeaderWord(const void* header, int lane) {
  return static_cast<const uint32_t*>(header)[lane % kHeaderWords];
}

// The arithmetic of a thread's values, one after the other: of one channel or,
// in the flat view, 32 values apart.
class ThreadQuantizer {
 public:
  // first: number of the first value in the tensor.
  __device__ ThreadQuantizer(const Quantizer& stream,
                             const ChannelScales& scales, int64_t channels,
                             int64_t first, bool flat)
      : stream_(stream), scales_(scales), of_(stream) {
    if (scales.exponents == nullptr && scales.centres == nullptr) return;
    channels_ = static_cast<int32_t>(channels);
    channel_ = static_cast<int32_t>(first % channels);
    advance_ = flat ? static_cast<int32_t>(FlatAdvance(channels)) : 0;
    Load();
  }

  __device__ const Quantizer& operator*() const { return of_; }
  __device__ void Next() {
    if (advance_ == 0) return;
    channel_ += advance_;
    if (channel_ >= channels_) channel_ -= channels_;
    Load();
  }
  // Whether a code between two, of the channels so far, has to be compared with
  // its value.
  template <Coding kCoding>
  __device__ bool Checks(int low, int high) const {
    Quantizer all = of_;
    all.centre = largest_centre_;
    return verify_all_ || NeedsCheck<kCoding>(all, low) ||
           NeedsCheck<kCoding>(all, high);
  }

 private:
  __device__ void Load() {
    of_ =
        OfChannel(stream_, scales_.exponents ? scales_.exponents[channel_] : 0,
                  scales_.centres ? scales_.centres[channel_] : 0);
    const int32_t centre = of_.centre < 0 ? -of_.centre : of_.centre;
    if (centre > largest_centre_) largest_centre_ = centre;
    verify_all_ |= of_.verify_all;
  }

  Quantizer stream_;
  ChannelScales scales_;
  Quantizer of_;
  int32_t channels_ = 1, channel_ = 0, advance_ = 0, largest_centre_ = 0;
  bool verify_all_ = of_.verify_all;
};

// The scales that a stream ends in.
struct StoredScales {
  ChannelScales scales;
  uint64_t bytes = 0;
};

// By a warp: whether the flags say that there are scales, and they are whole.
static __device__ inline bool OpenScales(const uint8_t* stream,
                                         uint64_t n_bytes, uint32_t channels,
                                         int flags, float step, int lane,
                                         StoredScales* stored) {
  stored->bytes = ScaleBytes(flags, channels);
  if (stored->bytes == 0) return true;
  if (((flags & kCentres) && !(flags & kDither)) ||
      stored->bytes > n_bytes - sizeof(StreamHeader)) {
    stored->bytes = 0;
    return false;
  }
  const uint8_t* const from = stream + n_bytes - stored->bytes;
  const uint8_t* const centres = from + ExponentBytes(flags, channels);
  bool right = true;
  if (flags & kExponents) {
    stored->scales.exponents = reinterpret_cast<const int8_t*>(from);
    for (int64_t i = lane; from + i < centres; i += kWarpLanes) {
      const int exponent = static_cast<int8_t>(from[i]);
      right &= i < channels ? ExponentIsRight(step, exponent) : exponent == 0;
    }
  }
  if (flags & kCentres) {
    stored->scales.centres = reinterpret_cast<const int16_t*>(centres);
    if (channels % 2 != 0) right &= stored->scales.centres[channels] == 0;
  }
  return __all_sync(kAllLanes, right);
}

// By a warp: whether a header, of a codec with an error bound, is the one that
// the host expects, which knows all but coding, scales, step, seed and, of some
// codecs, payload_offset; fills in these.
static __device__ inline bool OpenHeader(const uint8_t* stream,
                                         uint64_t n_bytes,
                                         const StreamHeader& expected, int lane,
                                         Quantizer* q, uint32_t* payload_offset,
                                         StoredScales* stored) {
  constexpr int kFlags = offsetof(StreamHeader, flags) / 4;
  constexpr int kFlagsShift = 8 * (offsetof(StreamHeader, flags) % 4);
  constexpr uint32_t kFree = BitOfWord(offsetof(StreamHeader, step)) |
                             BitOfWord(offsetof(StreamHeader, inv)) |
                             BitOfWord(offsetof(StreamHeader, seed)) |
                             BitOfWord(offsetof(StreamHeader, payload_offset));
  const uint32_t word = HeaderWord(stream, lane);
  const auto word_at = [&](size_t offset) {
    return __shfl_sync(kAllLanes, word, static_cast<int>(offset / 4));
  };
  const uint32_t flags = word_at(4 * kFlags) >> kFlagsShift &
                         (kMidRise | kDither | kExponents | kCentres);
  const uint32_t coding = flags & (kMidRise | kDither);
  uint32_t wanted = HeaderWord(&expected, lane);
  if (lane == kFlags) wanted |= flags << kFlagsShift;
  q->coding = coding & kDither    ? Coding::kDither
              : coding & kMidRise ? Coding::kMidRise
                                  : Coding::kPlain;
  q->dtype = static_cast<DType>(expected.dtype);
  q->step = BitsFloat(word_at(offsetof(StreamHeader, step)));
  q->inv = BitsFloat(word_at(offsetof(StreamHeader, inv)));
  q->seed = word_at(offsetof(StreamHeader, seed));
  *payload_offset = word_at(offsetof(StreamHeader, payload_offset));
  const bool right = HeaderIs(word, wanted, kFree, lane) &&
                     coding != (kMidRise | kDither) &&
                     (coding == kDither || q->seed == 0) &&
                     0.5f * q->step >= FLT_MIN && q->step <= FLT_MAX;
  return right && OpenScales(stream, n_bytes, expected.channels, flags, q->step,
                             lane, stored);
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
  __device__ uint64_t payload_words(const StoredScales& stored) const {
    return (n_bytes - stored.bytes - expected.payload_offset) / 4;
  }
};

// What a decoder makes of an element of a tensor, the one that At() goes to:
// from a code, that of value `number` of its stream, or from the value as it is
// stored.
template <class T>
struct Values {
  T* out;

  // The one `elements` further on.
  __device__ Values At(int64_t elements) const { return {out + elements}; }
  template <Coding kCoding>
  __device__ void PutCode(const Quantizer& q, int code, uint32_t number) const {
    FromFloat(DequantizeValue<kCoding>(q, code, number), out);
  }
  __device__ void Put(T value) const { *out = value; }
};
template <class T>
struct MaskedGradient {
  const T* dy;
  T* dx;

  __device__ MaskedGradient At(int64_t elements) const {
    return {dy + elements, dx + elements};
  }
  template <Coding>
  __device__ void PutCode(const Quantizer&, int code, uint32_t) const {
    *dx = code != 0 ? *dy : T();
  }
  __device__ void Put(T value) const {
    *dx = CountsAsZero(ToFloat(value)) ? T() : *dy;
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
    all.again += of_warp[w].again;
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
  BlockSums s = {};
  for (int64_t b = me; b < blocks; b += kScanThreads) {
    s.nonzero += block_sums[b].nonzero;
    s.again += block_sums[b].again;
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
      sums[me].again += sums[me + d].again;
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
    totals->again = sums[0].again;
  }
}

// Words of the items before `item` in its range of kItems, whose entries hold
// them under `mask`. entries: aligned to 4, and so is what lies behind them.
template <int kItems>
static __device__ inline int WordsBefore(const uint16_t* entries, int64_t item,
                                         int mask, int lane) {
  static_assert(kItems % 2 == 0, "a lane reads pairs");
  const int before = static_cast<int>(item % kItems);
  const auto* pairs =
      reinterpret_cast<const uint32_t*>(entries + (item - before));
  int words = 0;
#pragma unroll
  for (int i = 0; 2 * i < kItems; i += kWarpLanes) {
    const int first = 2 * (i + lane);
    const uint32_t pair = first < before ? pairs[i + lane] : 0;
    words += pair & mask;
    if (first + 1 < before) words += pair >> 16 & mask;
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

// What a stream ends in: words of 4 bytes.
static __global__ void WriteScales(ChannelScales scales, int flags,
                                   uint32_t channels, uint32_t* out) {
  const uint64_t i =
      static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const uint64_t exponents = ExponentBytes(flags, channels) / 4;
  if (4 * i >= ScaleBytes(flags, channels)) return;
  uint32_t word = 0;
  if (i < exponents) {
    for (uint64_t j = 0; j < 4 && 4 * i + j < channels; ++j) {
      word |= static_cast<uint32_t>(
                  static_cast<uint8_t>(scales.exponents[4 * i + j]))
              << (8 * j);
    }
  } else {
    const uint64_t first = 2 * (i - exponents);
    for (uint64_t j = 0; j < 2 && first + j < channels; ++j) {
      word |= static_cast<uint32_t>(
                  static_cast<uint16_t>(scales.centres[first + j]))
              << (16 * j);
    }
  }
  out[i] = word;
}

inline uint64_t ScaleBytesOf(const EncodeParams& p) {
  return ScaleBytes(FlagsOf(Coding::kPlain, false, p.scales),
                    static_cast<uint64_t>(p.channels));
}

inline Status LaunchWriteScales(const char* codec, const EncodeParams& p,
                                const StreamHeader& header, void* out_dev,
                                CUstream_st* cuda_stream) {
  const uint64_t bytes = ScaleBytesOf(p);
  if (bytes == 0) return {};
  return Launch(codec, "writing scales", WriteScales,
                CeilDiv(static_cast<int64_t>(bytes / 4), kHeadThreads),
                kHeadThreads, 0, cuda_stream, p.scales, int{header.flags},
                header.channels,
                reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(out_dev) +
                                            header.total_bytes - bytes));
}

// Tiles or chunks of a stream, and the ranges that its directory has of them.
struct Counts {
  int64_t items, ranges;
};
// Of a stream, device: an entry an item, and where each range begins.
struct SizesIn {
  const uint16_t* entries;
  const uint32_t* starts;
};

// The end of the first pass: the scan of what was measured to scratch.
inline Status AddUpSizes(const char* codec, const Scratch& at, uint8_t* scratch,
                         const Counts& of, GpuTotals* totals,
                         CUstream_st* cuda_stream) {
  return Launch(codec, "adding up sizes", ScanRanges, 1, kScanThreads, 0,
                cuda_stream, of.ranges,
                reinterpret_cast<const uint32_t*>(scratch + at.words),
                reinterpret_cast<uint32_t*>(scratch + at.starts),
                static_cast<int64_t>(Scratch::Blocks(of.items)),
                reinterpret_cast<const BlockSums*>(scratch + at.sums), totals);
}

// The start of the second one.
inline Status LaunchWriteHead(const char* codec, const StreamHeader& header,
                              const Counts& of, const SizesIn& sizes,
                              void* out_dev, CUstream_st* cuda_stream) {
  return Launch(codec, "writing the header", WriteHead,
                CeilDiv(header.payload_offset / 4, kHeadThreads), kHeadThreads,
                0, cuda_stream, header, of.items, of.ranges, sizes.entries,
                sizes.starts, static_cast<uint32_t*>(out_dev));
}

}  // namespace comptrain::gpu
