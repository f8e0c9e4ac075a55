// Decodes tiles of plane on a GPU: a warp a tile, a thread a lane.
#include <cuda_runtime.h>

#include "cc/codec/plane/gpu.h"
#include "cc/codec/plane/gpu_tile.h"

namespace comptrain::plane {
namespace {

using gpu::kThreads;
using gpu::kWarps;
using gpu::Stream;
using gpu::ThreadQuantizer;

// The codes of a tile that is neither zero nor raw; false when its words do not
// add up. words: in shared memory, with two words of slack behind them.
template <bool kWideCodes>
__device__ bool Unpack(int n_words, const uint32_t* words, int lane,
                       LaneCodes* codes) {
  constexpr int kHeader = kWideCodes ? kWideHeaderWords : kNarrowHeaderWords;
  constexpr int kEach = kWideCodes ? 2 : 4;
  if (n_words < kHeader) return false;
  const uint32_t byte =
      words[(kWideCodes ? lane : lane % 16) / 4] >> (8 * (lane & 3));
  const uint32_t code = kWideCodes ? byte & 255 : byte >> (lane / 16 * 4) & 15;
  LaneFormat f;
  if (!__all_sync(kAllLanes, FormatOfCode(code, kWideCodes, &f))) return false;
  const unsigned sparse = __ballot_sync(kAllLanes, f.sparse);
  if (kHeader + __popc(sparse) > n_words) return false;
  if (f.sparse) f.map = words[kHeader + __popc(sparse & BitsBelow(lane))];
  const TileLayout at = LayOut(f, kWideCodes, lane);
  if (at.words != n_words) return false;
  const int first = f.sparse ? at.sparse : 32 * at.dense;
  if (sparse == 0) {
    codes->Read<kEach, false>(f, first, words);
  } else {
    codes->Read<kEach, true>(f, first, words);
  }
  return true;
}

// valid: of the tile, all of it where kFull.
template <Coding kCoding, bool kFull, class Sink>
__device__ void Emit(ThreadQuantizer q, const LaneCodes& codes, uint32_t first,
                     int valid, int64_t row, int lane, Sink sink) {
#pragma unroll
  for (int t = 0; t < kPixels; ++t, sink = sink.At(row), q.Next()) {
    if (!kFull && t * kLanes + lane >= valid) continue;
    sink.template PutCode<kCoding>(*q, static_cast<int>(codes.u[t]),
                                   first + t * kLanes);
  }
}

template <bool kFull, class Sink>
__device__ void Emit(const ThreadQuantizer& q, const LaneCodes& codes,
                     uint32_t first, int valid, int64_t row, int lane,
                     const Sink& sink) {
  switch ((*q).coding) {
    case Coding::kMidRise:
      return Emit<Coding::kMidRise, kFull>(q, codes, first, valid, row, lane,
                                           sink);
    case Coding::kDither:
      return Emit<Coding::kDither, kFull>(q, codes, first, valid, row, lane,
                                          sink);
    default:
      return Emit<Coding::kPlain, kFull>(q, codes, first, valid, row, lane,
                                         sink);
  }
}

// From what was packed to codes.
__device__ void UndoFlags(uint16_t entry, LaneCodes* codes) {
  if (entry & kZigzag) {
#pragma unroll
    for (int t = 0; t < kPixels; ++t) {
      codes->u[t] = codes->u[t] >> 1 ^ -(codes->u[t] & 1);
    }
  }
  if (entry & kDelta) {
#pragma unroll
    for (int t = 1; t < kPixels; ++t) {
      const uint32_t sum = codes->u[t] + codes->u[t - 1];
      codes->u[t] = static_cast<uint32_t>(static_cast<int16_t>(sum));
    }
  }
}

template <class T, class Sink>
__global__ void __launch_bounds__(kThreads)
    DecodeTiles(const __grid_constant__ Stream s, TensorView tensor, Sink sink,
                uint32_t* damaged) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  __shared__ uint32_t of_warp[kWarps][kMaxTileWords + 2];
  if (tile >= tensor.tiles) return;
  if (s.any_codec && gpu::IsAnothers(s.bytes, CodecId::kPlane)) return;
  uint32_t* words = of_warp[warp];
  const auto* entries = s.At<uint16_t>(s.expected.directory_offset);
  const auto* starts = s.At<uint32_t>(s.expected.table_offset);
  const auto* payload = s.At<uint32_t>(s.expected.payload_offset);

  Quantizer q;
  uint32_t payload_offset;
  gpu::StoredScales stored;
  bool good = gpu::OpenHeader(s.bytes, s.n_bytes, s.expected, lane, &q,
                              &payload_offset, &stored) &&
              payload_offset == s.expected.payload_offset &&
              s.expected.total_bytes >= payload_offset + stored.bytes;
  const uint64_t payload_words = good ? s.payload_words(stored) : 0;
  uint16_t entry = good ? entries[tile] : 0;
  const int count = entry & kWordsMask;
  const TilePosition place = tensor.Place(tile);
  const Sink to = sink.At(place.offset + lane);
  LaneCodes codes = {};
  if (good) {
    const uint64_t from = static_cast<uint64_t>(starts[tile / kRangeTiles]) +
                          WordsBefore(entries, tile, lane);
    good = from + count <= payload_words && count <= kMaxTileWords;
    // The last tile of a range knows where the next one starts.
    if (tile + 1 == tensor.tiles) {
      good = good && from + count == payload_words;
    } else if ((tile + 1) % kRangeTiles == 0) {
      good = good && from + count == starts[tile / kRangeTiles + 1];
    }
    if (good) {
      CopyWords(payload + from, count, lane, words);
      if (lane < 2) words[count + lane] = 0;
    }
  }
  __syncwarp();
  if (good && (entry & kRaw)) {
    good =
        entry == (kRaw | ((place.valid * static_cast<int>(sizeof(T)) + 3) / 4));
    if (good) {
      const T* raw = reinterpret_cast<const T*>(words);
      for (int t = 0; t < kPixels; ++t) {
        if (t * kLanes + lane >= place.valid) break;
        to.At(t * tensor.row).Put(raw[t * kLanes + lane]);
      }
      return;
    }
  }
  if (good && entry != 0) {
    good = entry & kWide ? Unpack<true>(count, words, lane, &codes)
                         : Unpack<false>(count, words, lane, &codes);
    UndoFlags(entry, &codes);
  }
  if (!good) {
    codes = LaneCodes();
    q.coding = Coding::kPlain;
    q.step = 0;
    stored = gpu::StoredScales();
    if (lane == 0) *damaged = 1;
  }
  const uint32_t first =
      q.seed + static_cast<uint32_t>(tile) * kTileValues + lane;
  const ThreadQuantizer of_lane(q, stored.scales, tensor.channels,
                                place.offset + lane, tensor.flat);
  if (place.valid == kTileValues) {
    Emit<true>(of_lane, codes, first, kTileValues, tensor.row, lane, to);
  } else {
    Emit<false>(of_lane, codes, first, place.valid, tensor.row, lane, to);
  }
}

// --- Host --------------------------------------------------------------------

struct Reader {
  static constexpr CodecId kId = CodecId::kPlane;
  static constexpr const char* kOnGpu = plane::kOnGpu;
  const GpuEncoded& from;
  const Geometry geometry;

  explicit Reader(const GpuEncoded& f) : from(f), geometry(f.n, f.channels) {}
  Status Check() const { return CheckGeometry(from.n, geometry); }
  StreamHeader header() const {
    return HeaderOf(from.dtype, geometry, from.channels, from.bytes);
  }
  template <class T, class Sink>
  Status Launch(const Stream& stream, const Sink& sink, uint32_t* damaged_dev,
                CUstream_st* cuda_stream) const {
    return gpu::Launch(kOnGpu, "decoding", DecodeTiles<T, Sink>,
                       Blocks(geometry), kThreads, 0, cuda_stream, stream,
                       TensorOf(geometry, from.channels), sink, damaged_dev);
  }
};

}  // namespace
}  // namespace comptrain::plane

constexpr comptrain::GpuDecoder comptrain::kGpuPlaneDecoder =
    gpu::kDecoderOf<plane::Reader>;
