// Codec A on a GPU: a warp a tile, a thread a lane.
#include <cuda_runtime.h>

#include <algorithm>

#include "cc/codec/check_params.h"
#include "cc/codec/half.h"
#include "cc/codec/plane_gpu.h"
#include "cc/codec/plane_lane.h"
#include "cc/codec/plane_layout.h"
#include "cc/codec/quantize.h"
#include "cc/codec/stream_gpu_kernels.h"

namespace comptrain {
namespace {

using plane::Geometry;
using plane::kLanes;
using plane::kPixels;
using plane::kRangeTiles;
using plane::kTileValues;
using plane::LaneFormat;
using plane::Quantizer;
using plane::Sections;

using gpu::BlockSums;
using gpu::kThreads;
using gpu::kWarps;
using gpu::WarpSum;

static_assert(kRangeTiles % kWarps == 0, "a block's tiles are of one range");

// Words of the slice of scratch that a tile is encoded to, 5 bits a value; tiles
// that take more are encoded again.
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

constexpr char kCodec[] = "codec A on the GPU";

// --- Device ------------------------------------------------------------------

// Geometry::Place, which is host code.
struct Tensor {
  int64_t n, row, groups, tiles;
  bool flat;

  __device__ int64_t Offset(int64_t tile) const {
    return tile / groups * kPixels * row + tile % groups * kLanes;
  }
  __device__ int Valid(int64_t tile) const {
    const int64_t left =
        flat ? n - Offset(tile)
             : (n / row - tile / groups * kPixels) * kLanes;
    return left < kTileValues ? static_cast<int>(left) : kTileValues;
  }
};

__device__ unsigned LanesBelow(int lane) { return (1u << lane) - 1; }

// The 32 pixels of one lane, as they are packed.
struct LaneCodes {
  uint32_t u[kPixels];

  // width words of a dense lane.
  __device__ void WriteDense(int width, uint32_t* out) const {
    uint32_t word = 0;
    int filled = 0;
#pragma unroll
    for (int t = 0; t < kPixels; ++t) {
      word |= u[t] << filled;
      filled += width;
      if (filled >= 32) {
        *out++ = word;
        filled -= 32;
        word = u[t] >> (width - filled);
      }
    }
  }
  // Reads two words more.
  __device__ void ReadDense(int width, const uint32_t* in) {
    const uint32_t mask = (1u << width) - 1;
    uint32_t low = *in++, high = *in++;
    int at = 0;
#pragma unroll
    for (int t = 0; t < kPixels; ++t) {
      u[t] = __funnelshift_r(low, high, at) & mask;
      at += width;
      if (at >= 32) {
        at -= 32;
        low = high;
        high = *in++;
      }
    }
  }

  // The values of a sparse lane from bit `at` on of zeroed words, which it
  // shares with its neighbours.
  __device__ void WriteSparse(const LaneFormat& f, int at, uint32_t* words) const {
    uint32_t word = 0;
    int filled = at & 31;
    words += at >> 5;
#pragma unroll
    for (int t = 0; t < kPixels; ++t) {
      if ((f.map >> t & 1) == 0) continue;
      word |= (u[t] - 1) << filled;
      filled += f.width;
      if (filled >= 32) {
        atomicOr(words++, word);
        filled -= 32;
        word = (u[t] - 1) >> (f.width - filled);
      }
    }
    if (word != 0) atomicOr(words, word);
  }
  // Reads a word more.
  __device__ void ReadSparse(const LaneFormat& f, int at, const uint32_t* words) {
    const uint32_t mask = (1u << f.width) - 1;
#pragma unroll
    for (int t = 0; t < kPixels; ++t) {
      u[t] = 0;
      if ((f.map >> t & 1) == 0) continue;
      const uint32_t* two = words + (at >> 5);
      u[t] = (__funnelshift_r(two[0], two[1], at & 31) & mask) + 1;
      at += f.width;
    }
  }
};

// Where the parts of a tile's words lie; alike in all lanes but `dense`,
// `sparse` and `map`, which are this lane's: first word, first bit, word.
struct TileLayout {
  int words = 0, map = 0, dense = 0, sparse = 0, sparse_words = 0, first_sparse = 0;
};

__device__ TileLayout LayOut(const LaneFormat& f, bool wide, int lane) {
  TileLayout at;
  const int header =
      wide ? plane::kWideHeaderWords : plane::kNarrowHeaderWords;
  const unsigned sparse = __ballot_sync(kAllLanes, f.sparse);
  const int maps = __popc(sparse);
  // Sums over the lanes before, of two at once: words of dense lanes, at most 512,
  // and bits of sparse ones, at most 2^14.
  const uint32_t mine = f.sparse ? f.value_bits() : f.width << 16;
  uint32_t sums = mine;
  for (int d = 1; d < kLanes; d *= 2) {
    const uint32_t below = __shfl_up_sync(kAllLanes, sums, d);
    if (lane >= d) sums += below;
  }
  const uint32_t totals = __shfl_sync(kAllLanes, sums, kLanes - 1);
  sums -= mine;
  const int dense_words = totals >> 16;
  at.sparse_words = ((totals & 0xffff) + 31) / 32;
  at.map = header + __popc(sparse & LanesBelow(lane));
  at.dense = header + maps + (sums >> 16);
  at.first_sparse = header + maps + dense_words;
  at.sparse = 32 * at.first_sparse + (sums & 0xffff);
  at.words = dense_words + maps == 0 ? 0 : at.first_sparse + at.sparse_words;
  return at;
}

// One choice of codes for the tile. largest, map: of this lane's codes.
struct Candidate {
  LaneFormat format;
  bool wide;
  TileLayout at;

  __device__ Candidate(uint32_t largest, uint32_t map, int lane) {
    wide = __any_sync(kAllLanes, largest > 255);
    format = plane::ChooseFormat(
        largest, map, wide ? plane::kWideMaxSparse : plane::kNarrowMaxSparse);
    at = LayOut(format, wide, lane);
  }
};

// The words of a tile into shared memory.
__device__ void Pack(const LaneCodes& codes, const Candidate& c, int lane,
                     uint32_t* words) {
  uint32_t code = plane::FormatCode(c.format, c.wide);
  if (!c.wide) code |= __shfl_down_sync(kAllLanes, code, 16) << 4;
  // Byte l % 16 or l of the header is this lane's.
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    word |= (__shfl_sync(kAllLanes, code, (4 * lane + i) & 31) & 255) << (8 * i);
  }
  const int header =
      c.wide ? plane::kWideHeaderWords : plane::kNarrowHeaderWords;
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

// The codes of a lane, the smallest and the largest of which become low and high,
// or 0. False when the tile has to be stored raw.
template <Coding kCoding>
__device__ bool Quantize(const Quantizer& q, const float* v, uint32_t first,
                         int lane, int* code, int* low, int* high) {
  bool coded = true;
  *low = *high = 0;
#pragma unroll
  for (int t = 0; t < kPixels; ++t) {
    coded &= QuantizeValue<kCoding>(q, v[t], first + t * kLanes + lane, &code[t]);
    *low = min(*low, code[t]);
    *high = max(*high, code[t]);
  }
  if (!__all_sync(kAllLanes, coded)) return false;
  const bool check = q.verify_all || NeedsCheck<kCoding>(*low) ||
                     NeedsCheck<kCoding>(*high);
  if (!__any_sync(kAllLanes, check)) return true;
  bool within = true;
#pragma unroll
  for (int t = 0; t < kPixels; ++t) {
    within &= CodeWithinBound<kCoding>(q, v[t], code[t],
                                       first + t * kLanes + lane);
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
__device__ uint16_t EncodeTile(const Quantizer& q, const Tensor& tensor,
                               int64_t tile, const T* x, int lane,
                               BlockSums* sums, uint32_t* words,
                               int most_words) {
  const int valid = tensor.Valid(tile);
  const T* from = x + tensor.Offset(tile) + lane;
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
      flags = plane::kZigzag;
      largest = max(2 * high, -2 * low - 1);
#pragma unroll
      for (int t = 0; t < kPixels; ++t) codes.u[t] = Zigzag(code[t]);
    } else {
#pragma unroll
      for (int t = 0; t < kPixels; ++t) codes.u[t] = code[t];
    }
    Candidate best(largest, map, lane);
    if (WarpSum(__popc(map)) > plane::kDeltaMinNonzero) {
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
        flags = plane::kDelta | plane::kZigzag;
      }
    }
    if (best.at.words == 0) return 0;
    if (best.at.words < raw_words) {
      if (best.at.words <= most_words) Pack(codes, best, lane, words);
      return static_cast<uint16_t>(best.at.words | flags |
                                   (best.wide ? plane::kWide : 0));
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
  return static_cast<uint16_t>(plane::kRaw | raw_words);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    EncodeTiles(Quantizer q, Tensor tensor, const T* x, uint16_t* entries,
                uint32_t* range_words, BlockSums* block_sums, uint32_t* slices) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  __shared__ uint32_t of_warp[kWarps][kSliceWords];
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  BlockSums sums = {0, 0, 0};
  if (tile < tensor.tiles) {
    const uint16_t entry =
        EncodeTile(q, tensor, tile, x, lane, &sums, of_warp[warp], kSliceWords);
    const int count = entry & plane::kWordsMask;
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

// Words of the range's tiles before this one.
__device__ int WordsBefore(const uint16_t* entries, int64_t tile, int lane) {
  return gpu::WordsBefore(entries, tile / kRangeTiles * kRangeTiles, tile,
                          plane::kWordsMask, lane);
}

__global__ void __launch_bounds__(kThreads)
    CopyTiles(int64_t tiles, const uint16_t* entries, const uint32_t* starts,
              const uint32_t* slices, uint32_t* payload) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (tile >= tiles) return;
  const int count = entries[tile] & plane::kWordsMask;
  if (count == 0 || count > kSliceWords) return;
  uint32_t* to = payload + starts[tile / kRangeTiles] +
                 WordsBefore(entries, tile, lane);
  for (int i = lane; i < count; i += kLanes) {
    to[i] = slices[tile * kSliceWords + i];
  }
}

// The tiles that did not fit their slices.
template <class T>
__global__ void __launch_bounds__(kThreads)
    EncodeAgain(Quantizer q, Tensor tensor, const T* x, const uint16_t* entries,
                const uint32_t* starts, uint32_t* payload) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  __shared__ uint32_t of_warp[kWarps][plane::kMaxTileWords];
  uint32_t* words = of_warp[warp];
  for (int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
       tile < tensor.tiles; tile += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int count = entries[tile] & plane::kWordsMask;
    if (count <= kSliceWords) continue;
    EncodeTile<T>(q, tensor, tile, x, lane, nullptr, words, plane::kMaxTileWords);
    uint32_t* to = payload + starts[tile / kRangeTiles] +
                   WordsBefore(entries, tile, lane);
    for (int i = lane; i < count; i += kLanes) to[i] = words[i];
    __syncwarp();  // before the next tile's words
  }
}

// The codes of a tile that is neither zero nor raw; false when its words do not
// add up. words: in shared memory, with a word of slack behind them.
__device__ bool Unpack(uint16_t entry, const uint32_t* words, int lane,
                       LaneCodes* codes) {
  const int n_words = entry & plane::kWordsMask;
  const bool wide = (entry & plane::kWide) != 0;
  const int header =
      wide ? plane::kWideHeaderWords : plane::kNarrowHeaderWords;
  if (n_words < header) return false;
  const uint32_t byte = words[(wide ? lane : lane % 16) / 4] >> (8 * (lane & 3));
  const uint32_t code =
      wide ? byte & 255 : byte >> (lane / 16 * 4) & 15;
  LaneFormat f;
  if (!__all_sync(kAllLanes, plane::FormatOfCode(code, wide, &f))) return false;
  const unsigned sparse = __ballot_sync(kAllLanes, f.sparse);
  if (header + __popc(sparse) > n_words) return false;
  if (f.sparse) f.map = words[header + __popc(sparse & LanesBelow(lane))];
  const TileLayout at = LayOut(f, wide, lane);
  if (at.words != n_words) return false;
  if (f.sparse) {
    codes->ReadSparse(f, at.sparse, words);
  } else {
    codes->ReadDense(f.width, words + at.dense);
  }
  return true;
}

// What a decoder makes of a tile.
template <class T>
struct Values {
  T* out;
  __device__ void Put(int64_t i, T value) const { out[i] = value; }
  __device__ void PutRaw(int64_t i, T value) const { out[i] = value; }
  static constexpr bool kMask = false;
};
template <class T>
struct MaskedGradient {
  const T* dy;
  T* dx;
  __device__ void Put(int64_t i, bool set) const { dx[i] = set ? dy[i] : T(); }
  __device__ void PutRaw(int64_t i, T value) const {
    Put(i, !CountsAsZero(ToFloat(value)));
  }
  static constexpr bool kMask = true;
};

template <class T, Coding kCoding, class Sink>
__device__ void Emit(const Quantizer& q, const LaneCodes& codes,
                     uint16_t entry, const Tensor& tensor, int64_t tile,
                     int lane, const Sink& sink) {
  const int valid = tensor.Valid(tile);
  int64_t at = tensor.Offset(tile) + lane;
  const uint32_t first = static_cast<uint32_t>(tile) * kTileValues + lane;
  int code[kPixels];
#pragma unroll
  for (int t = 0; t < kPixels; ++t) code[t] = codes.u[t];
  if (entry & plane::kZigzag) {
#pragma unroll
    for (int t = 0; t < kPixels; ++t) {
      code[t] = plane::Unzigzag(static_cast<uint16_t>(code[t]));
    }
  }
  if (entry & plane::kDelta) {
#pragma unroll
    for (int t = 1; t < kPixels; ++t) {
      code[t] = static_cast<int16_t>(code[t] + code[t - 1]);
    }
  }
#pragma unroll
  for (int t = 0; t < kPixels; ++t, at += tensor.row) {
    if (t * kLanes + lane >= valid) continue;
    if constexpr (Sink::kMask) {
      sink.Put(at, code[t] != 0);
    } else {
      T value;
      FromFloat(DequantizeValue<kCoding>(q, code[t], first + t * kLanes), &value);
      sink.Put(at, value);
    }
  }
}

struct Stream {
  const uint8_t* bytes;
  uint64_t payload_words;
  uint32_t directory, table, payload;
  StreamHeader expected;  // all but flags, step and inv
  bool any_codec;
};

// Whether the header is one that the host expects; fills in the arithmetic.
__device__ bool OpenHeader(const Stream& s, DType dtype, Quantizer* q) {
  StreamHeader h;
  memcpy(&h, s.bytes, sizeof h);
  const uint8_t coding = h.flags & (kMidRise | kDither);
  q->coding = coding & kDither    ? Coding::kDither
              : coding & kMidRise ? Coding::kMidRise
                                  : Coding::kPlain;
  q->dtype = dtype;
  q->step = h.step;
  const StreamHeader& e = s.expected;
  return h.magic == e.magic && h.version == e.version && h.codec == e.codec &&
         h.dtype == e.dtype && h.n == e.n && h.channels == e.channels &&
         h.flags == (e.flags | coding) && coding != (kMidRise | kDither) &&
         h.log2_pixels == e.log2_pixels && h.total_bytes == e.total_bytes &&
         h.n_chunks == e.n_chunks && h.directory_offset == e.directory_offset &&
         h.table_offset == e.table_offset &&
         h.payload_offset == e.payload_offset &&
         h.total_bytes >= h.payload_offset && h.step > 0;
}

template <class T, class Sink>
__global__ void __launch_bounds__(kThreads)
    DecodeTiles(Stream s, DType dtype, Tensor tensor, Sink sink,
                uint32_t* damaged) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  __shared__ uint32_t of_warp[kWarps][plane::kMaxTileWords + 2];
  if (tile >= tensor.tiles) return;
  if (s.any_codec && gpu::IsAnothers(s.bytes, CodecId::kPlane)) return;
  uint32_t* words = of_warp[warp];
  const auto* entries = reinterpret_cast<const uint16_t*>(s.bytes + s.directory);
  const auto* starts = reinterpret_cast<const uint32_t*>(s.bytes + s.table);
  const auto* payload = reinterpret_cast<const uint32_t*>(s.bytes + s.payload);

  Quantizer q;
  bool good = OpenHeader(s, dtype, &q);
  uint16_t entry = good ? entries[tile] : 0;
  const int count = entry & plane::kWordsMask;
  const int valid = tensor.Valid(tile);
  LaneCodes codes = {};
  if (good) {
    const uint64_t from =
        static_cast<uint64_t>(starts[tile / kRangeTiles]) +
        WordsBefore(entries, tile, lane);
    good = from + count <= s.payload_words && count <= plane::kMaxTileWords;
    // The last tile of a range knows where the next one starts.
    if (tile + 1 == tensor.tiles) {
      good = good && from + count == s.payload_words;
    } else if ((tile + 1) % kRangeTiles == 0) {
      good = good && from + count == starts[tile / kRangeTiles + 1];
    }
    if (good) {
      for (int i = lane; i < count; i += kLanes) words[i] = payload[from + i];
      if (lane < 2) words[count + lane] = 0;
    }
  }
  __syncwarp();
  if (good && (entry & plane::kRaw)) {
    good = entry == (plane::kRaw |
                     ((valid * static_cast<int>(sizeof(T)) + 3) / 4));
    if (good) {
      const T* raw = reinterpret_cast<const T*>(words);
      for (int t = 0; t < kPixels; ++t) {
        if (t * kLanes + lane >= valid) break;
        sink.PutRaw(tensor.Offset(tile) + t * tensor.row + lane,
                    raw[t * kLanes + lane]);
      }
      return;
    }
  }
  if (good && entry != 0) good = Unpack(entry, words, lane, &codes);
  if (!good) {
    codes = LaneCodes();
    entry = 0;
    q.coding = Coding::kPlain;
    q.step = 0;
    if (lane == 0) *damaged = 1;
  }
  switch (q.coding) {
    case Coding::kMidRise:
      return Emit<T, Coding::kMidRise>(q, codes, entry, tensor, tile, lane, sink);
    case Coding::kDither:
      return Emit<T, Coding::kDither>(q, codes, entry, tensor, tile, lane, sink);
    default:
      return Emit<T, Coding::kPlain>(q, codes, entry, tensor, tile, lane, sink);
  }
}

// --- Host --------------------------------------------------------------------

int64_t Blocks(const Geometry& g) {
  return static_cast<int64_t>(gpu::Scratch::Blocks(g.tiles));
}

Status CheckGeometry(int64_t n, const Geometry& g) {
  return CheckSize(CodecId::kPlane, n, g.tiles, Sections(g).payload);
}

Status CheckEncode(const PlaneParams& p) {
  const Status s = CheckParams(CodecId::kPlane, p, Isa::kScalar);
  return s.ok() ? CheckGeometry(p.n, Geometry(p.n, p.channels)) : s;
}

Tensor TensorOf(const Geometry& g) {
  return {g.n, g.row, g.groups, g.tiles, g.flat};
}

Quantizer QuantizerOf(const PlaneParams& p) {
  return plane::MakeQuantizer(p.dtype, plane::CodingOf(p),
                              p.eb);
}

StreamHeader HeaderOf(DType dtype, const Geometry& g, int64_t channels,
                      uint64_t total_bytes) {
  StreamHeader h = MakeHeader(CodecId::kPlane, dtype, g.n, channels,
                              plane::kLog2Pixels, g.tiles, Sections(g),
                              total_bytes);
  h.flags = static_cast<uint8_t>(g.flat ? kFlat : 0);
  return h;
}

// Decodes with Sink(T()), a function from the storage type to a sink.
template <class MakeSink>
Status Decode(const GpuEncoded& from, CUstream_st* stream,
              const MakeSink& make_sink) {
  Status checked =
      CheckTensor(CodecId::kPlane, from.n, from.channels, from.dtype, Isa::kScalar);
  if (!checked.ok()) return checked;
  const Geometry g(from.n, from.channels);
  checked = CheckGeometry(from.n, g);
  if (!checked.ok()) return checked;
  const Sections at(g);
  checked = gpu::CheckStreamBytes(kCodec, from, at.payload);
  if (!checked.ok() || from.n == 0) return checked;
  Stream s;
  s.bytes = static_cast<const uint8_t*>(from.stream_dev);
  s.payload_words = (from.bytes - at.payload) / 4;
  s.directory = static_cast<uint32_t>(at.directory);
  s.table = static_cast<uint32_t>(at.table);
  s.payload = static_cast<uint32_t>(at.payload);
  s.expected = HeaderOf(from.dtype, g, from.channels, from.bytes);
  s.any_codec = from.any_codec;
  WithStorageType(from.dtype, [&](auto type) {
    const auto sink = make_sink(type);
    checked = gpu::Launch(
        kCodec, "decoding", DecodeTiles<decltype(type), decltype(make_sink(type))>,
        Blocks(g), kThreads, 0, stream, s, from.dtype, TensorOf(g), sink,
        from.damaged_dev);
  });
  return checked;
}

}  // namespace

size_t PlaneGpuScratchBytes(const PlaneParams& params) {
  if (!CheckEncode(params).ok()) return 0;
  return Scratch(Geometry(params.n, params.channels)).bytes;
}

size_t PlaneGpuBytes(const PlaneParams& params, const GpuTotals& totals) {
  return Sections(Geometry(params.n, params.channels)).payload +
         4 * totals.words;
}

Status PlaneGpuMeasure(const PlaneParams& params, const void* x_dev,
                       void* scratch_dev, GpuTotals* totals,
                       CUstream_st* stream) {
  Status s = CheckEncode(params);
  if (!s.ok()) return s;
  const Geometry g(params.n, params.channels);
  const Scratch at(g);
  auto* scratch = static_cast<uint8_t*>(scratch_dev);
  auto* words = reinterpret_cast<uint32_t*>(scratch + at.words);
  auto* sums = reinterpret_cast<BlockSums*>(scratch + at.sums);
  if (g.tiles > 0) {
    s = gpu::CheckCuda(
        kCodec, cudaMemsetAsync(words, 0, 4 * g.ranges(), stream),
        "clearing scratch");
    if (!s.ok()) return s;
    WithStorageType(params.dtype, [&](auto type) {
      using T = decltype(type);
      s = gpu::Launch(kCodec, "encoding", EncodeTiles<T>, Blocks(g), kThreads, 0,
                      stream, QuantizerOf(params), TensorOf(g),
                      static_cast<const T*>(x_dev),
                      reinterpret_cast<uint16_t*>(scratch + at.entries), words,
                      sums, reinterpret_cast<uint32_t*>(scratch + at.slices));
    });
    if (!s.ok()) return s;
  }
  return gpu::Launch(kCodec, "adding up sizes", gpu::ScanRanges, 1,
                     gpu::kScanThreads, 0, stream, g.ranges(), words,
                     reinterpret_cast<uint32_t*>(scratch + at.starts), Blocks(g),
                     sums, totals);
}

Status PlaneGpuWrite(const PlaneParams& params, const void* x_dev,
                     const void* scratch_dev, const GpuTotals& totals,
                     void* out_dev, CUstream_st* stream) {
  Status s = CheckEncode(params);
  if (!s.ok()) return s;
  s = CheckWords(CodecId::kPlane, totals.words);
  if (!s.ok()) return s;
  const Geometry g(params.n, params.channels);
  const Scratch at(g);
  const auto* scratch = static_cast<const uint8_t*>(scratch_dev);
  const auto* entries =
      reinterpret_cast<const uint16_t*>(scratch + at.entries);
  const auto* starts = reinterpret_cast<const uint32_t*>(scratch + at.starts);
  const Quantizer q = QuantizerOf(params);
  StreamHeader h =
      HeaderOf(params.dtype, g, params.channels, PlaneGpuBytes(params, totals));
  h.flags = plane::FlagsOf(q.coding, g.flat);
  h.step = q.step;
  h.inv = q.inv;
  s = gpu::Launch(kCodec, "writing the header", gpu::WriteHead,
                  CeilDiv(h.payload_offset / 4, gpu::kHeadThreads),
                  gpu::kHeadThreads, 0, stream, h, g.tiles, g.ranges(), entries,
                  starts, static_cast<uint32_t*>(out_dev));
  if (!s.ok() || g.tiles == 0) return s;
  auto* payload = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(out_dev) +
                                              h.payload_offset);
  s = gpu::Launch(kCodec, "copying tiles", CopyTiles, Blocks(g), kThreads, 0,
                  stream, g.tiles, entries, starts,
                  reinterpret_cast<const uint32_t*>(scratch + at.slices), payload);
  if (!s.ok()) return s;
  WithStorageType(params.dtype, [&](auto type) {
    using T = decltype(type);
    s = gpu::Launch(kCodec, "encoding again", EncodeAgain<T>,
                    std::min(Blocks(g), kAgainBlocks), kThreads, 0, stream, q,
                    TensorOf(g), static_cast<const T*>(x_dev), entries, starts,
                    payload);
  });
  return s;
}

Status PlaneGpuDecode(const GpuEncoded& from, void* out_dev,
                      CUstream_st* stream) {
  return Decode(from, stream, [&](auto type) {
    using T = decltype(type);
    return Values<T>{static_cast<T*>(out_dev)};
  });
}

Status PlaneGpuMaskGradient(const GpuEncoded& from, const void* dy_dev,
                            void* dx_dev, CUstream_st* stream) {
  return Decode(from, stream, [&](auto type) {
    using T = decltype(type);
    return MaskedGradient<T>{static_cast<const T*>(dy_dev),
                             static_cast<T*>(dx_dev)};
  });
}

}  // namespace comptrain
