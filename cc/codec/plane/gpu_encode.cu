// Encodes tiles of plane on a GPU: a warp a tile, a thread a lane.
#include <cuda_runtime.h>

#include <algorithm>

#include "cc/codec/common/half.h"
#include "cc/codec/plane/gpu.h"
#include "cc/codec/plane/gpu_tile.h"
#include "cc/codec/stream/quantize.h"

namespace comptrain::plane {
namespace {

using gpu::BlockSums;
using gpu::kThreads;
using gpu::kWarps;
using gpu::ThreadQuantizer;
using gpu::WarpSum;

static_assert(kRangeTiles % kWarps == 0, "a block's tiles are of one range");

// Words of the slice of scratch that a tile is encoded to, 5 bits a value;
// tiles that take more are encoded again.
constexpr int kSliceWords = kTileValues * 5 / 32;
// Blocks that look for those: there are few, or all.
constexpr int64_t kAgainBlocks = 2048;

struct Scratch : gpu::Scratch {
  uint64_t slices;

  explicit Scratch(const Geometry& g) : gpu::Scratch(g.tiles, g.ranges()) {
    slices = bytes;
    bytes += 4 * kSliceWords * static_cast<uint64_t>(g.tiles);
  }
};

// --- Device ------------------------------------------------------------------

// One choice of codes for the tile. largest, map: of this lane's codes.
struct Candidate {
  LaneFormat format;
  bool wide;
  TileLayout at;

  __device__ Candidate(uint32_t largest, uint32_t map, int lane) {
    wide = __any_sync(kAllLanes, largest > 255);
    format =
        ChooseFormat(largest, map, wide ? kWideMaxSparse : kNarrowMaxSparse);
    at = LayOut(format, wide, lane);
  }
};

// The words of a tile into shared memory.
template <bool kWideCodes>
__device__ void PackAs(const LaneCodes& codes, const Candidate& c, int lane,
                       uint32_t* words) {
  constexpr int kEach = kWideCodes ? 2 : 4;
  constexpr int kHeader = kWideCodes ? kWideHeaderWords : kNarrowHeaderWords;
  uint32_t code = FormatCode(c.format, kWideCodes);
  if (!kWideCodes) code |= __shfl_down_sync(kAllLanes, code, 16) << 4;
  // Byte l % 16 or l of the header is this lane's.
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    word |= (__shfl_sync(kAllLanes, code, (4 * lane + i) & 31) & 255)
            << (8 * i);
  }
  if (c.at.sparse_words == 0) {
    codes.Write<kEach, false>(c.format, 32 * c.at.dense, words);
  } else {
    for (int i = kHeader + lane; i < c.at.words; i += kLanes) words[i] = 0;
    __syncwarp();
    if (c.format.sparse) words[c.at.map] = c.format.map;
    codes.Write<kEach, true>(
        c.format, c.format.sparse ? c.at.sparse : 32 * c.at.dense, words);
  }
  if (lane < kHeader) words[lane] = word;
  __syncwarp();
}
__device__ void Pack(const LaneCodes& codes, const Candidate& c, int lane,
                     uint32_t* words) {
  if (c.wide) {
    PackAs<true>(codes, c, lane, words);
  } else {
    PackAs<false>(codes, c, lane, words);
  }
}

// The codes of a lane, the smallest and the largest of which become low and
// high, or 0. False when the tile has to be stored raw.
template <Coding kCoding>
__device__ bool Quantize(const ThreadQuantizer& lane, const float* v,
                         uint32_t first, int* code, int* low, int* high) {
  *low = *high = 0;
  ThreadQuantizer q = lane;
#pragma unroll
  for (int t = 0; t < kPixels; ++t, q.Next()) {
    code[t] = CodeOf<kCoding>(*q, v[t], first + t * kLanes);
    *low = min(*low, code[t]);
    *high = max(*high, code[t]);
  }
  if (!__any_sync(kAllLanes, q.Checks<kCoding>(*low, *high))) return true;
  bool within = IsCode(*low) && IsCode(*high);
  q = lane;
#pragma unroll
  for (int t = 0; t < kPixels; ++t, q.Next()) {
    code[t] = CutOff(code[t]);
    within &= CodeWithinBound<kCoding>(*q, v[t], code[t], first + t * kLanes);
  }
  *low = CutOff(*low);
  *high = CutOff(*high);
  return __all_sync(kAllLanes, within);
}

// Of a code of 16 bits.
__device__ uint32_t Zigzag(int code) {
  return static_cast<uint32_t>(code) << 1 ^ static_cast<uint32_t>(code >> 31);
}

// Bit t: u[t] is not 0.
__device__ uint32_t MapOf(const LaneCodes& codes) {
  uint32_t map = 0;
#pragma unroll
  for (int t = kPixels - 1; t >= 0; --t) {
    map = __funnelshift_l(0u - codes.u[t], map, 1);
  }
  return map;
}

// Packs codes, of which low and high are the smallest and the largest, or 0,
// the way that takes the fewest words. Returns their entry, kRaw where the tile
// itself takes no more; *map: which codes are not 0.
__device__ uint16_t PackCodes(const int* code, int low, int high, int raw_words,
                              int lane, uint32_t* words, int most_words,
                              uint32_t* map) {
  LaneCodes codes;
  uint16_t flags = 0;
  if (__any_sync(kAllLanes, low < 0)) {
    flags = kZigzag;
    high = max(2 * high, -2 * low - 1);
#pragma unroll
    for (int t = 0; t < kPixels; ++t) codes.u[t] = Zigzag(code[t]);
  } else {
#pragma unroll
    for (int t = 0; t < kPixels; ++t) codes.u[t] = code[t];
  }
  *map = MapOf(codes);
  Candidate best(high, *map, lane);
  if (WarpSum(__popc(*map)) > kDeltaMinNonzero) {
    LaneCodes delta;
    uint32_t largest = 0;
#pragma unroll
    for (int t = 0; t < kPixels; ++t) {
      const int before = t == 0 ? 0 : code[t - 1];
      delta.u[t] = Zigzag(static_cast<int16_t>(code[t] - before));
      largest = max(largest, delta.u[t]);
    }
    const Candidate other(largest, MapOf(delta), lane);
    if (other.at.words < best.at.words) {
      best = other;
      codes = delta;
      flags = kDelta | kZigzag;
    }
  }
  if (best.at.words == 0) return 0;
  if (best.at.words >= raw_words) return kRaw;
  if (best.at.words <= most_words) Pack(codes, best, lane, words);
  return static_cast<uint16_t>(best.at.words | flags | (best.wide ? kWide : 0));
}

__device__ bool Quantize(const ThreadQuantizer& lane, const float* v,
                         uint32_t first, int* code, int* low, int* high) {
  switch ((*lane).coding) {
    case Coding::kMidRise:
      return Quantize<Coding::kMidRise>(lane, v, first, code, low, high);
    case Coding::kDither:
      return Quantize<Coding::kDither>(lane, v, first, code, low, high);
    default:
      return Quantize<Coding::kPlain>(lane, v, first, code, low, high);
  }
}

// Of a lane.
__device__ int CountNonzero(const float* v) {
  int nonzero = 0;
#pragma unroll
  for (int t = 0; t < kPixels; ++t) nonzero += !CountsAsZero(v[t]);
  return nonzero;
}

// Encodes a tile. Its words go to `words`, in shared memory, where there are no
// more than most_words.
template <class T>
__device__ uint16_t EncodeTile(const Quantizer& q, const ChannelScales& scales,
                               const TensorView& tensor, int64_t tile,
                               const T* x, int lane, BlockSums* sums,
                               uint32_t* words, int most_words) {
  const TilePosition place = tensor.Place(tile);
  const int valid = place.valid;
  const T* from = x + place.offset + lane;
  T value[kPixels];
  float v[kPixels];
  if (valid == kTileValues) {
#pragma unroll
    for (int t = 0; t < kPixels; ++t, from += tensor.row) value[t] = *from;
  } else {
#pragma unroll
    for (int t = 0; t < kPixels; ++t, from += tensor.row) {
      value[t] = T();
      if (t * kLanes + lane < valid) value[t] = *from;
    }
  }
#pragma unroll
  for (int t = 0; t < kPixels; ++t) v[t] = ToFloat(value[t]);

  const int raw_words = (valid * static_cast<int>(sizeof(T)) + 3) / 4;
  uint16_t entry = kRaw;
  uint32_t map = 0;
  int code[kPixels], low, high;
  const bool coded =
      Quantize(ThreadQuantizer(q, scales, tensor.channels, place.offset + lane,
                               tensor.flat),
               v, q.seed + static_cast<uint32_t>(tile) * kTileValues + lane,
               code, &low, &high);
  if (coded) {
    entry =
        PackCodes(code, low, high, raw_words, lane, words, most_words, &map);
  }
  if (sums != nullptr) {
    // But for plain codes none is 0 where the value counts.
    const bool all_in_map = coded && q.coding != Coding::kPlain;
    *sums = {static_cast<uint64_t>(
                 WarpSum(all_in_map ? __popc(map) : CountNonzero(v))),
             0};
  }
  if (entry != kRaw) return entry;
  if (raw_words <= most_words) {
    if (lane == 0) words[raw_words - 1] = 0;
    __syncwarp();
    T* raw = reinterpret_cast<T*>(words);
#pragma unroll
    for (int t = 0; t < kPixels; ++t) {
      if (t * kLanes + lane < valid) raw[t * kLanes + lane] = value[t];
    }
    __syncwarp();
  }
  return static_cast<uint16_t>(kRaw | raw_words);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    EncodeTiles(Quantizer q, ChannelScales scales, TensorView tensor,
                const T* x, uint16_t* entries, uint32_t* range_words,
                BlockSums* block_sums, uint32_t* slices) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  __shared__ uint32_t of_warp[kWarps][kSliceWords];
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  BlockSums sums = {};
  if (tile < tensor.tiles) {
    const uint16_t entry = EncodeTile(q, scales, tensor, tile, x, lane, &sums,
                                      of_warp[warp], kSliceWords);
    const int count = entry & kWordsMask;
    if (count <= kSliceWords) {
      CopyWords(of_warp[warp], count, lane, slices + tile * kSliceWords);
    } else {
      sums.again = 1;
    }
    if (lane == 0) {
      entries[tile] = entry;
      atomicAdd(range_words + tile / kRangeTiles, static_cast<uint32_t>(count));
    }
  }
  gpu::PutBlockSums(sums, block_sums);
}

__global__ void __launch_bounds__(kThreads)
    CopyTiles(int64_t tiles, const uint16_t* entries, const uint32_t* starts,
              const uint32_t* slices, uint32_t* payload) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (tile >= tiles) return;
  const int count = entries[tile] & kWordsMask;
  if (count == 0 || count > kSliceWords) return;
  CopyWords(
      slices + tile * kSliceWords, count, lane,
      payload + starts[tile / kRangeTiles] + WordsBefore(entries, tile, lane));
}

// The tiles that did not fit their slices.
template <class T>
__global__ void __launch_bounds__(kThreads)
    EncodeAgain(Quantizer q, ChannelScales scales, TensorView tensor,
                const T* x, const uint16_t* entries, const uint32_t* starts,
                uint32_t* payload) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  __shared__ uint32_t of_warp[kWarps][kMaxTileWords];
  uint32_t* words = of_warp[warp];
  for (int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
       tile < tensor.tiles; tile += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int count = entries[tile] & kWordsMask;
    if (count <= kSliceWords) continue;
    EncodeTile<T>(q, scales, tensor, tile, x, lane, nullptr, words,
                  kMaxTileWords);
    CopyWords(words, count, lane,
              payload + starts[tile / kRangeTiles] +
                  WordsBefore(entries, tile, lane));
    __syncwarp();  // before the next tile's words
  }
}

// --- Host --------------------------------------------------------------------

Status CheckEncode(const EncodeParams& p) {
  const Status s = CheckParams(CodecId::kPlane, p, Isa::kScalar);
  return s.ok() ? CheckGeometry(p.n, Geometry(p.n, p.channels)) : s;
}

size_t ScratchBytes(const EncodeParams& params) {
  if (!CheckEncode(params).ok()) return 0;
  return Scratch(Geometry(params.n, params.channels)).bytes;
}

size_t StreamBytes(const EncodeParams& params, const GpuTotals& totals) {
  return Sections(Geometry(params.n, params.channels)).payload +
         4 * totals.words + gpu::ScaleBytesOf(params);
}

Status Measure(const EncodeParams& params, const void* x_dev, void* scratch_dev,
               GpuTotals* totals, CUstream_st* cuda_stream) {
  Status s = CheckEncode(params);
  if (!s.ok()) return s;
  const Geometry g(params.n, params.channels);
  const Scratch at(g);
  auto* scratch = static_cast<uint8_t*>(scratch_dev);
  auto* words = reinterpret_cast<uint32_t*>(scratch + at.words);
  auto* sums = reinterpret_cast<BlockSums*>(scratch + at.sums);
  if (g.tiles > 0) {
    s = gpu::CheckCuda(kOnGpu,
                       cudaMemsetAsync(words, 0, 4 * g.ranges(), cuda_stream),
                       "clearing scratch");
    if (!s.ok()) return s;
    WithStorageType(params.dtype, [&](auto type) {
      using T = decltype(type);
      s = gpu::Launch(kOnGpu, "encoding", EncodeTiles<T>, Blocks(g), kThreads,
                      0, cuda_stream, QuantizerOf(params), params.scales,
                      TensorOf(g, params.channels),
                      static_cast<const T*>(x_dev),
                      reinterpret_cast<uint16_t*>(scratch + at.entries), words,
                      sums, reinterpret_cast<uint32_t*>(scratch + at.slices));
    });
    if (!s.ok()) return s;
  }
  return gpu::AddUpSizes(kOnGpu, at, scratch, {g.tiles, g.ranges()}, totals,
                         cuda_stream);
}

Status Write(const EncodeParams& params, const void* x_dev,
             const void* scratch_dev, const GpuTotals& totals, void* out_dev,
             CUstream_st* cuda_stream) {
  Status s = CheckEncode(params);
  if (!s.ok()) return s;
  s = CheckWords(CodecId::kPlane, totals.words);
  if (!s.ok()) return s;
  const Geometry g(params.n, params.channels);
  const Scratch at(g);
  const auto* scratch = static_cast<const uint8_t*>(scratch_dev);
  const auto* entries = reinterpret_cast<const uint16_t*>(scratch + at.entries);
  const auto* starts = reinterpret_cast<const uint32_t*>(scratch + at.starts);
  const Quantizer q = QuantizerOf(params);
  StreamHeader h =
      HeaderOf(params.dtype, g, params.channels, StreamBytes(params, totals));
  SetQuantizer(q, g.flat, params.scales, &h);
  s = gpu::LaunchWriteHead(kOnGpu, h, {g.tiles, g.ranges()}, {entries, starts},
                           out_dev, cuda_stream);
  if (s.ok()) {
    s = gpu::LaunchWriteScales(kOnGpu, params, h, out_dev, cuda_stream);
  }
  if (!s.ok() || g.tiles == 0) return s;
  auto* payload = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(out_dev) +
                                              h.payload_offset);
  s = gpu::Launch(kOnGpu, "copying tiles", CopyTiles, Blocks(g), kThreads, 0,
                  cuda_stream, g.tiles, entries, starts,
                  reinterpret_cast<const uint32_t*>(scratch + at.slices),
                  payload);
  if (!s.ok() || totals.again == 0) return s;
  WithStorageType(params.dtype, [&](auto type) {
    using T = decltype(type);
    s = gpu::Launch(kOnGpu, "encoding again", EncodeAgain<T>,
                    std::min(Blocks(g), kAgainBlocks), kThreads, 0, cuda_stream,
                    q, params.scales, TensorOf(g, params.channels),
                    static_cast<const T*>(x_dev), entries, starts, payload);
  });
  return s;
}

}  // namespace
}  // namespace comptrain::plane

constexpr comptrain::GpuEncoder comptrain::kGpuPlaneEncoder = {
    plane::ScratchBytes, plane::StreamBytes, plane::Measure, plane::Write};
