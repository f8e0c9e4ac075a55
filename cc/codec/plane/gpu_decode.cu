// Decodes tiles of plane on a GPU: a warp a tile, a thread a lane.
#include <cuda_runtime.h>

#include "cc/codec/common/half.h"
#include "cc/codec/plane/gpu.h"
#include "cc/codec/plane/gpu_tile.h"
#include "cc/codec/stream/quantize.h"

namespace comptrain {
namespace {

using gpu::kThreads;
using gpu::kWarps;
using plane::Blocks;
using plane::CheckGeometry;
using plane::Geometry;
using plane::HeaderOf;
using plane::kLanes;
using plane::kOnGpu;
using plane::kPixels;
using plane::kRangeTiles;
using plane::kTileValues;
using plane::LaneCodes;
using plane::LaneFormat;
using plane::LayOut;
using plane::Sections;
using plane::TensorOf;
using plane::TensorView;
using plane::TileLayout;
using plane::WordsBefore;

// The codes of a tile that is neither zero nor raw; false when its words do not
// add up. words: in shared memory, with a word of slack behind them.
__device__ bool Unpack(uint16_t entry, const uint32_t* words, int lane,
                       LaneCodes* codes) {
  const int n_words = entry & plane::kWordsMask;
  const bool wide = (entry & plane::kWide) != 0;
  const int header = wide ? plane::kWideHeaderWords : plane::kNarrowHeaderWords;
  if (n_words < header) return false;
  const uint32_t byte =
      words[(wide ? lane : lane % 16) / 4] >> (8 * (lane & 3));
  const uint32_t code = wide ? byte & 255 : byte >> (lane / 16 * 4) & 15;
  LaneFormat f;
  if (!__all_sync(kAllLanes, plane::FormatOfCode(code, wide, &f))) return false;
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
__device__ void Emit(const Quantizer& q, const LaneCodes& codes, uint16_t entry,
                     const TensorView& tensor, int64_t tile, int lane,
                     const Sink& sink) {
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
      FromFloat(DequantizeValue<kCoding>(q, code[t], first + t * kLanes),
                &value);
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

template <class T, class Sink>
__global__ void __launch_bounds__(kThreads)
    DecodeTiles(Stream s, TensorView tensor, Sink sink, uint32_t* damaged) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  __shared__ uint32_t of_warp[kWarps][plane::kMaxTileWords + 2];
  if (tile >= tensor.tiles) return;
  if (s.any_codec && gpu::IsAnothers(s.bytes, CodecId::kPlane)) return;
  uint32_t* words = of_warp[warp];
  const auto* entries =
      reinterpret_cast<const uint16_t*>(s.bytes + s.directory);
  const auto* starts = reinterpret_cast<const uint32_t*>(s.bytes + s.table);
  const auto* payload = reinterpret_cast<const uint32_t*>(s.bytes + s.payload);

  Quantizer q;
  const auto& h = *reinterpret_cast<const StreamHeader*>(s.bytes);
  bool good = gpu::OpenHeader(h, s.expected, &q) &&
              h.payload_offset == s.expected.payload_offset &&
              h.total_bytes >= h.payload_offset;
  uint16_t entry = good ? entries[tile] : 0;
  const int count = entry & plane::kWordsMask;
  const int valid = tensor.Valid(tile);
  LaneCodes codes = {};
  if (good) {
    const uint64_t from = static_cast<uint64_t>(starts[tile / kRangeTiles]) +
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
    good = entry ==
           (plane::kRaw | ((valid * static_cast<int>(sizeof(T)) + 3) / 4));
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
      return Emit<T, Coding::kMidRise>(q, codes, entry, tensor, tile, lane,
                                       sink);
    case Coding::kDither:
      return Emit<T, Coding::kDither>(q, codes, entry, tensor, tile, lane,
                                      sink);
    default:
      return Emit<T, Coding::kPlain>(q, codes, entry, tensor, tile, lane, sink);
  }
}

// --- Host --------------------------------------------------------------------

// Decodes with Sink(T()), a function from the storage type to a sink.
template <class MakeSink>
Status Decode(const GpuEncoded& from, CUstream_st* cuda_stream,
              const MakeSink& make_sink) {
  Status checked = CheckTensor(CodecId::kPlane, from.n, from.channels,
                               from.dtype, Isa::kScalar);
  if (!checked.ok()) return checked;
  const Geometry g(from.n, from.channels);
  checked = CheckGeometry(from.n, g);
  if (!checked.ok()) return checked;
  const Sections at(g);
  checked = gpu::CheckStreamBytes(kOnGpu, from, at.payload);
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
        kOnGpu, "decoding",
        DecodeTiles<decltype(type), decltype(make_sink(type))>, Blocks(g),
        kThreads, 0, cuda_stream, s, TensorOf(g), sink, from.damaged_dev);
  });
  return checked;
}

Status DecodeValues(const GpuEncoded& from, void* out_dev,
                    CUstream_st* cuda_stream) {
  return Decode(from, cuda_stream, [&](auto type) {
    using T = decltype(type);
    return Values<T>{static_cast<T*>(out_dev)};
  });
}

Status DecodeMaskGradient(const GpuEncoded& from, const void* dy_dev,
                          void* dx_dev, CUstream_st* cuda_stream) {
  return Decode(from, cuda_stream, [&](auto type) {
    using T = decltype(type);
    return MaskedGradient<T>{static_cast<const T*>(dy_dev),
                             static_cast<T*>(dx_dev)};
  });
}

}  // namespace

const GpuDecoder& GpuPlaneDecoder() {
  static const GpuDecoder decoder = {DecodeValues, DecodeMaskGradient};
  return decoder;
}

}  // namespace comptrain
