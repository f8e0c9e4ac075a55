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
__device__ void Pack(const LaneCodes& codes, const Candidate& c, int lane,
                     uint32_t* words) {
  uint32_t code = FormatCode(c.format, c.wide);
  if (!c.wide) code |= __shfl_down_sync(kAllLanes, code, 16) << 4;
  // Byte l % 16 or l of the header is this lane's.
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    word |= (__shfl_sync(kAllLanes, code, (4 * lane + i) & 31) & 255)
            << (8 * i);
  }
  const int header = c.wide ? kWideHeaderWords : kNarrowHeaderWords;
  if (lane < header) words[lane] = word;
  if (c.format.sparse) words[c.at.map] = c.format.map;
  for (int i = lane; i < c.at.sparse_words; i += kLanes) {
    words[c.at.first_sparse + i] = 0;
  }
  __syncwarp();
  if (c.format.sparse) {
    codes.WriteSparse(c.format, c.at.sparse, words);
  } else {
    codes.WriteDense(c.format.width, words + c.at.dense);
  }
  __syncwarp();
}

// The codes of a lane, the smallest and the largest of which become low and
// high, or 0. False when the tile has to be stored raw.
template <Coding kCoding>
__device__ bool Quantize(const Quantizer& q, const float* v, uint32_t first,
                         int lane, int* code, int* low, int* high) {
  bool coded = true;
  *low = *high = 0;
#pragma unroll
  for (int t = 0; t < kPixels; ++t) {
    coded &=
        QuantizeValue<kCoding>(q, v[t], first + t * kLanes + lane, &code[t]);
    *low = min(*low, code[t]);
    *high = max(*high, code[t]);
  }
  if (!__all_sync(kAllLanes, coded)) return false;
  const bool check =
      q.verify_all || NeedsCheck<kCoding>(*low) || NeedsCheck<kCoding>(*high);
  if (!__any_sync(kAllLanes, check)) return true;
  bool within = true;
#pragma unroll
  for (int t = 0; t < kPixels; ++t) {
    within &=
        CodeWithinBound<kCoding>(q, v[t], code[t], first + t * kLanes + lane);
  }
  return __all_sync(kAllLanes, within);
}

__device__ BlockSums SumsOf(const float* v) {
  float sum = 0, sum_sq = 0;
  int nonzero = 0;
#pragma unroll
  for (int t = 0; t < kPixels; ++t) {
    nonzero += !CountsAsZero(v[t]);
    sum += v[t];
    sum_sq += v[t] * v[t];
  }
  double s = sum, sq = sum_sq;
  if (!__all_sync(kAllLanes, isfinite(sum) && isfinite(sum_sq))) {
    s = sq = 0;
    nonzero = 0;
#pragma unroll
    for (int t = 0; t < kPixels; ++t) {
      if (!isfinite(v[t])) continue;
      nonzero += !CountsAsZero(v[t]);
      s += v[t];
      sq += static_cast<double>(v[t]) * v[t];
    }
  }
  for (int d = kLanes / 2; d > 0; d /= 2) {
    s += __shfl_down_sync(kAllLanes, s, d);
    sq += __shfl_down_sync(kAllLanes, sq, d);
  }
  return {static_cast<uint64_t>(WarpSum(nonzero)), s, sq};
}

// Of a code of 16 bits.
__device__ uint32_t Zigzag(int code) {
  return static_cast<uint32_t>(code) << 1 ^ static_cast<uint32_t>(code >> 31);
}

// Encodes a tile. Its words go to `words`, in shared memory, where there are no
// more than most_words.
template <class T>
__device__ uint16_t EncodeTile(const Quantizer& q, const TensorView& tensor,
                               int64_t tile, const T* x, int lane,
                               BlockSums* sums, uint32_t* words,
                               int most_words) {
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
  if (sums != nullptr) *sums = SumsOf(v);

  const int raw_words = (valid * static_cast<int>(sizeof(T)) + 3) / 4;
  const uint32_t first = static_cast<uint32_t>(tile) * kTileValues;
  int code[kPixels], low, high;
  bool coded;
  switch (q.coding) {
    case Coding::kMidRise:
      coded = Quantize<Coding::kMidRise>(q, v, first, lane, code, &low, &high);
      break;
    case Coding::kDither:
      coded = Quantize<Coding::kDither>(q, v, first, lane, code, &low, &high);
      break;
    default:
      coded = Quantize<Coding::kPlain>(q, v, first, lane, code, &low, &high);
  }
  if (coded) {
    uint32_t map = 0;
#pragma unroll
    for (int t = 0; t < kPixels; ++t) {
      map |= static_cast<uint32_t>(code[t] != 0) << t;
    }
    LaneCodes codes;
    uint32_t largest = high;
    uint16_t flags = 0;
    if (__any_sync(kAllLanes, low < 0)) {
      flags = kZigzag;
      largest = max(2 * high, -2 * low - 1);
#pragma unroll
      for (int t = 0; t < kPixels; ++t) codes.u[t] = Zigzag(code[t]);
    } else {
#pragma unroll
      for (int t = 0; t < kPixels; ++t) codes.u[t] = code[t];
    }
    Candidate best(largest, map, lane);
    if (WarpSum(__popc(map)) > kDeltaMinNonzero) {
      LaneCodes delta;
      largest = map = 0;
#pragma unroll
      for (int t = 0; t < kPixels; ++t) {
        const int before = t == 0 ? 0 : code[t - 1];
        delta.u[t] = Zigzag(static_cast<int16_t>(code[t] - before));
        largest = max(largest, delta.u[t]);
        map |= static_cast<uint32_t>(delta.u[t] != 0) << t;
      }
      const Candidate other(largest, map, lane);
      if (other.at.words < best.at.words) {
        best = other;
        codes = delta;
        flags = kDelta | kZigzag;
      }
    }
    if (best.at.words == 0) return 0;
    if (best.at.words < raw_words) {
      if (best.at.words <= most_words) Pack(codes, best, lane, words);
      return static_cast<uint16_t>(best.at.words | flags |
                                   (best.wide ? kWide : 0));
    }
  }
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
    EncodeTiles(Quantizer q, TensorView tensor, const T* x, uint16_t* entries,
                uint32_t* range_words, BlockSums* block_sums,
                uint32_t* slices) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  __shared__ uint32_t of_warp[kWarps][kSliceWords];
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  BlockSums sums = {0, 0, 0};
  if (tile < tensor.tiles) {
    const uint16_t entry =
        EncodeTile(q, tensor, tile, x, lane, &sums, of_warp[warp], kSliceWords);
    const int count = entry & kWordsMask;
    if (count <= kSliceWords) {
      for (int i = lane; i < count; i += kLanes) {
        slices[tile * kSliceWords + i] = of_warp[warp][i];
      }
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
  uint32_t* to =
      payload + starts[tile / kRangeTiles] + WordsBefore(entries, tile, lane);
  for (int i = lane; i < count; i += kLanes) {
    to[i] = slices[tile * kSliceWords + i];
  }
}

// The tiles that did not fit their slices.
template <class T>
__global__ void __launch_bounds__(kThreads)
    EncodeAgain(Quantizer q, TensorView tensor, const T* x,
                const uint16_t* entries, const uint32_t* starts,
                uint32_t* payload) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  __shared__ uint32_t of_warp[kWarps][kMaxTileWords];
  uint32_t* words = of_warp[warp];
  for (int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
       tile < tensor.tiles; tile += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int count = entries[tile] & kWordsMask;
    if (count <= kSliceWords) continue;
    EncodeTile<T>(q, tensor, tile, x, lane, nullptr, words, kMaxTileWords);
    uint32_t* to =
        payload + starts[tile / kRangeTiles] + WordsBefore(entries, tile, lane);
    for (int i = lane; i < count; i += kLanes) to[i] = words[i];
    __syncwarp();  // before the next tile's words
  }
}

// --- Host --------------------------------------------------------------------

Status CheckEncode(const EncodeParams& p) {
  const Status s = CheckParams(CodecId::kPlane, p, Isa::kScalar);
  return s.ok() ? CheckGeometry(p.n, Geometry(p.n, p.channels)) : s;
}

Quantizer QuantizerOf(const EncodeParams& p) {
  return MakeQuantizer(p.dtype, CodingOf(p), p.eb);
}

size_t ScratchBytes(const EncodeParams& params) {
  if (!CheckEncode(params).ok()) return 0;
  return Scratch(Geometry(params.n, params.channels)).bytes;
}

size_t StreamBytes(const EncodeParams& params, const GpuTotals& totals) {
  return Sections(Geometry(params.n, params.channels)).payload +
         4 * totals.words;
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
                      0, cuda_stream, QuantizerOf(params), TensorOf(g),
                      static_cast<const T*>(x_dev),
                      reinterpret_cast<uint16_t*>(scratch + at.entries), words,
                      sums, reinterpret_cast<uint32_t*>(scratch + at.slices));
    });
    if (!s.ok()) return s;
  }
  return gpu::AddUpSizes(kOnGpu, at, scratch, g.tiles, g.ranges(), totals,
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
  h.flags = FlagsOf(q.coding, g.flat);
  h.step = q.step;
  h.inv = q.inv;
  s = gpu::LaunchWriteHead(kOnGpu, h, g.tiles, g.ranges(), entries, starts,
                           out_dev, cuda_stream);
  if (!s.ok() || g.tiles == 0) return s;
  auto* payload = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(out_dev) +
                                              h.payload_offset);
  s = gpu::Launch(kOnGpu, "copying tiles", CopyTiles, Blocks(g), kThreads, 0,
                  cuda_stream, g.tiles, entries, starts,
                  reinterpret_cast<const uint32_t*>(scratch + at.slices),
                  payload);
  if (!s.ok()) return s;
  WithStorageType(params.dtype, [&](auto type) {
    using T = decltype(type);
    s = gpu::Launch(kOnGpu, "encoding again", EncodeAgain<T>,
                    std::min(Blocks(g), kAgainBlocks), kThreads, 0, cuda_stream,
                    q, TensorOf(g), static_cast<const T*>(x_dev), entries,
                    starts, payload);
  });
  return s;
}

}  // namespace
}  // namespace comptrain::plane

constexpr comptrain::GpuEncoder comptrain::kGpuPlaneEncoder = {
    plane::ScratchBytes, plane::StreamBytes, plane::Measure, plane::Write};
