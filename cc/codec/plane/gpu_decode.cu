// Decodes tiles of plane on a GPU: a warp a tile, a thread a lane.
#include <cuda_runtime.h>

#include "cc/codec/plane/gpu.h"
#include "cc/codec/plane/gpu_tile.h"

namespace comptrain::plane {
namespace {

using gpu::kThreads;
using gpu::kWarps;
using gpu::Stream;

// The codes of a tile that is neither zero nor raw; false when its words do not
// add up. words: in shared memory, with a word of slack behind them.
__device__ bool Unpack(uint16_t entry, const uint32_t* words, int lane,
                       LaneCodes* codes) {
  const int n_words = entry & kWordsMask;
  const bool wide = (entry & kWide) != 0;
  const int header = wide ? kWideHeaderWords : kNarrowHeaderWords;
  if (n_words < header) return false;
  const uint32_t byte =
      words[(wide ? lane : lane % 16) / 4] >> (8 * (lane & 3));
  const uint32_t code = wide ? byte & 255 : byte >> (lane / 16 * 4) & 15;
  LaneFormat f;
  if (!__all_sync(kAllLanes, FormatOfCode(code, wide, &f))) return false;
  const unsigned sparse = __ballot_sync(kAllLanes, f.sparse);
  if (header + __popc(sparse) > n_words) return false;
  if (f.sparse) f.map = words[header + __popc(sparse & BitsBelow(lane))];
  const TileLayout at = LayOut(f, wide, lane);
  if (at.words != n_words) return false;
  if (f.sparse) {
    codes->ReadSparse(f, at.sparse, words);
  } else {
    codes->ReadDense(f.width, words + at.dense);
  }
  return true;
}

template <Coding kCoding, class Sink>
__device__ void Emit(const Quantizer& q, const LaneCodes& codes, uint16_t entry,
                     const TensorView& tensor, int64_t tile, int lane,
                     const Sink& sink) {
  const int valid = tensor.Valid(tile);
  int64_t at = tensor.Offset(tile) + lane;
  const uint32_t first = static_cast<uint32_t>(tile) * kTileValues + lane;
  int code[kPixels];
#pragma unroll
  for (int t = 0; t < kPixels; ++t) code[t] = codes.u[t];
  if (entry & kZigzag) {
#pragma unroll
    for (int t = 0; t < kPixels; ++t) {
      code[t] = Unzigzag(static_cast<uint16_t>(code[t]));
    }
  }
  if (entry & kDelta) {
#pragma unroll
    for (int t = 1; t < kPixels; ++t) {
      code[t] = static_cast<int16_t>(code[t] + code[t - 1]);
    }
  }
#pragma unroll
  for (int t = 0; t < kPixels; ++t, at += tensor.row) {
    if (t * kLanes + lane >= valid) continue;
    sink.template PutCode<kCoding>(q, at, code[t], first + t * kLanes);
  }
}

template <class T, class Sink>
__global__ void __launch_bounds__(kThreads)
    DecodeTiles(Stream s, TensorView tensor, Sink sink, uint32_t* damaged) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  __shared__ uint32_t of_warp[kWarps][kMaxTileWords + 2];
  if (tile >= tensor.tiles) return;
  if (s.any_codec && gpu::IsAnothers(s.bytes, CodecId::kPlane)) return;
  uint32_t* words = of_warp[warp];
  const auto* entries = s.At<uint16_t>(s.expected.directory_offset);
  const auto* starts = s.At<uint32_t>(s.expected.table_offset);
  const auto* payload = s.At<uint32_t>(s.expected.payload_offset);
  const uint64_t payload_words = s.payload_words();

  Quantizer q;
  const auto& h = *s.At<StreamHeader>(0);
  bool good = gpu::OpenHeader(h, s.expected, &q) &&
              h.payload_offset == s.expected.payload_offset &&
              h.total_bytes >= h.payload_offset;
  uint16_t entry = good ? entries[tile] : 0;
  const int count = entry & kWordsMask;
  const int valid = tensor.Valid(tile);
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
      for (int i = lane; i < count; i += kLanes) words[i] = payload[from + i];
      if (lane < 2) words[count + lane] = 0;
    }
  }
  __syncwarp();
  if (good && (entry & kRaw)) {
    good = entry == (kRaw | ((valid * static_cast<int>(sizeof(T)) + 3) / 4));
    if (good) {
      const T* raw = reinterpret_cast<const T*>(words);
      for (int t = 0; t < kPixels; ++t) {
        if (t * kLanes + lane >= valid) break;
        sink.Put(tensor.Offset(tile) + t * tensor.row + lane,
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
      return Emit<Coding::kMidRise>(q, codes, entry, tensor, tile, lane, sink);
    case Coding::kDither:
      return Emit<Coding::kDither>(q, codes, entry, tensor, tile, lane, sink);
    default:
      return Emit<Coding::kPlain>(q, codes, entry, tensor, tile, lane, sink);
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
                       TensorOf(geometry), sink, damaged_dev);
  }
};

}  // namespace
}  // namespace comptrain::plane

constexpr comptrain::GpuDecoder comptrain::kGpuPlaneDecoder =
    gpu::kDecoderOf<plane::Reader>;
