// Decodes chunks of rans on a GPU: a warp a chunk.
#include <cuda_runtime.h>

#include <cstring>
#include <iterator>

#include "cc/codec/rans/gpu.h"
#include "cc/codec/rans/gpu_chunk.h"

namespace comptrain::rans {
namespace {

using gpu::Stream;

// How a block reads a stream: codes of how many rows its warps hold on to. Most
// images are narrow, and the fewer rows, the more warps fit on a
// multiprocessor.
struct ReaderShape {
  int rows, warps;
};
// Bytes of a warp's History; its sizes go back twice as far as its codes.
__host__ __device__ constexpr int SizeRows(int code_rows) {
  return code_rows < kMaxPixels / 2 ? 2 * code_rows : kMaxPixels;
}
__host__ __device__ constexpr int HistoryBytes(int code_rows) {
  return kLanes * (2 * code_rows + SizeRows(code_rows));
}
constexpr ReaderShape kReaderShapes[] = {{32, 4}, {64, 4}, {128, 2}, {512, 1}};
constexpr const ReaderShape* kLargestShape = std::end(kReaderShapes) - 1;

struct OpenedStream {
  Quantizer quantizer;
  int stride, shift;
  int table;
  uint64_t payload, payload_words;
  gpu::StoredScales stored;
};

// Whether header and table are as the host expects them, which knows the offset
// of the payload with built-in frequencies; frequencies are left.
__device__ bool OpenRans(const Stream& s, OpenedStream* o) {
  const StreamHeader& e = s.expected;
  uint32_t payload_offset;
  const bool header_is_right =
      gpu::OpenHeader(s.bytes, s.n_bytes, e, threadIdx.x % kWarpLanes,
                      &o->quantizer, &payload_offset, &o->stored);
  if (s.n_bytes < e.payload_offset) return false;
  TableHead table;
  memcpy(&table, s.bytes + e.table_offset, sizeof table);
  o->stride = static_cast<int>(table.stride);
  o->shift = table.shift;
  o->table = table.table;
  o->payload =
      e.payload_offset + (table.table == kCountedTable ? kFrequencyBytes : 0);
  const bool right = header_is_right && payload_offset == o->payload &&
                     table.table <= kCountedTable && table.shift <= kMaxShift &&
                     table.stride >> e.log2_pixels == 0 &&
                     o->payload + o->stored.bytes <= s.n_bytes &&
                     (s.n_bytes - o->payload) % 4 == 0;
  if (right) {
    o->payload_words = (s.n_bytes - o->stored.bytes - o->payload) / 4;
  }
  return right;
}

template <Coding kCoding, class Sink>
__device__ bool ReadCoded(const Quantizer& stream, uint32_t channels,
                          const Geometry& geometry, const ChunkPlace& place,
                          const OpenedStream& o, const ReaderTables& tables,
                          const uint32_t* words, int n_words,
                          const History& history, const Sink& sink) {
  const auto* head = reinterpret_cast<const ChunkHead*>(words);
  // Of the lane whose state this thread has.
  const int lane = LaneOfState(threadIdx.x % kWarpLanes);
  const Column column = geometry.ColumnOf(place, lane);
  Sink to = sink.At(column.first);
  uint32_t number = stream.counter + lane;
  gpu::ThreadQuantizer q(stream, o.stored.scales, channels, column.first,
                         geometry.flat);
  const auto put = [&](int t, int code) {
    if (t < column.rows) to.template PutCode<kCoding>(*q, code, number);
    q.Next();
    to = to.At(geometry.row);
    number += kLanes;
  };
  const auto* coded = reinterpret_cast<const uint16_t*>(words + kHeadWords);
  const int n_coded = 2 * (n_words - kHeadWords);
  return o.stride > 0 ? ReadChunk<true>(tables, o.stride, o.shift, *head, coded,
                                        n_coded, place.rows, history, put)
                      : ReadChunk<false>(tables, 0, o.shift, *head, coded,
                                         n_coded, place.rows, history, put);
}

// Strides, or all others.
struct Strides {
  int first, end;
  bool others;

  __host__ __device__ bool Has(int stride) const {
    return (first <= stride && stride < end) != others;
  }
};

// A warp a chunk, the shape's warps a block. Streams of strides that are not
// this launch's are left to another one.
template <class T, class Sink>
__global__ void DecodeChunks(const __grid_constant__ Stream s,
                             Geometry geometry, BuiltIn built_in,
                             int shape_rows, Strides strides, Sink sink,
                             uint32_t* damaged) {
  if (s.any_codec && gpu::IsAnothers(s.bytes, CodecId::kRans)) return;
  OpenedStream o;
  bool good = OpenRans(s, &o);
  if (!good) o.stride = o.shift = 0;
  if (!strides.Has(o.stride)) return;

  auto* tables = reinterpret_cast<ReaderTables*>(gpu::SharedMemory());
  LoadTables(o.shift, &tables->lane);
  if (good) {
    const auto* counted = reinterpret_cast<const uint16_t*>(
        s.bytes + s.expected.table_offset + sizeof(TableHead));
    const uint16_t* freq =
        o.table == kCountedTable ? counted : built_in.freq[o.table];
    bool right = true;
    for (int c = threadIdx.x; c < kContexts; c += blockDim.x) {
      right &= tables->search.Fill(c, freq + c * kTokens);
    }
    good = __syncthreads_and(right);
  }
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  const int64_t chunk =
      static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarpLanes) + warp;
  if (chunk >= geometry.chunks) return;
  const ChunkPlace place = geometry.Place(chunk);
  const Column column = geometry.ColumnOf(place, lane);
  const uint32_t raw_words = RawWords<T>(place);

  if (good) {
    const auto* starts = reinterpret_cast<const uint32_t*>(
        s.bytes + s.expected.directory_offset);
    const auto* payload =
        reinterpret_cast<const uint32_t*>(s.bytes + o.payload);
    const uint64_t start = starts[chunk];
    const uint64_t stop =
        chunk + 1 == geometry.chunks ? o.payload_words : starts[chunk + 1];
    good = start <= stop && stop <= o.payload_words &&
           (chunk > 0 || start == 0) && stop - start <= raw_words;
    const int n_words = static_cast<int>(stop - start);
    if (good && n_words == static_cast<int>(raw_words)) {
      const T* raw = reinterpret_cast<const T*>(payload + start);
      for (int t = 0; t < column.rows; ++t) {
        sink.At(column.first + t * geometry.row)
            .Put(raw[column.raw + t * geometry.unit]);
      }
      return;
    }
    if (good && n_words > 0) {
      auto* codes =
          reinterpret_cast<uint16_t*>(reinterpret_cast<uint8_t*>(tables + 1) +
                                      warp * HistoryBytes(shape_rows));
      const History history = {
          codes, reinterpret_cast<uint8_t*>(codes + shape_rows * kLanes),
          shape_rows, SizeRows(shape_rows)};
      Quantizer q = o.quantizer;
      q.counter = q.seed + static_cast<uint32_t>(place.first);
      const uint32_t channels = s.expected.channels;
      const uint32_t* words = payload + start;
      good = n_words >= kHeadWords;
      if (good && q.coding == Coding::kMidRise) {
        good =
            ReadCoded<Coding::kMidRise>(q, channels, geometry, place, o,
                                        *tables, words, n_words, history, sink);
      } else if (good && q.coding == Coding::kDither) {
        good =
            ReadCoded<Coding::kDither>(q, channels, geometry, place, o, *tables,
                                       words, n_words, history, sink);
      } else if (good) {
        good =
            ReadCoded<Coding::kPlain>(q, channels, geometry, place, o, *tables,
                                      words, n_words, history, sink);
      }
      if (good) return;
    }
  }
  if (!good && lane == 0) *damaged = 1;
  for (int t = 0; t < column.rows; ++t) {
    sink.At(column.first + t * geometry.row).Put(T());
  }
}

// --- Host --------------------------------------------------------------------

struct Reader {
  static constexpr CodecId kId = CodecId::kRans;
  static constexpr const char* kOnGpu = rans::kOnGpu;
  const GpuEncoded& from;
  const Geometry geometry;

  explicit Reader(const GpuEncoded& f) : from(f), geometry(f.n, f.channels) {}
  Status Check() const { return CheckGeometry(from.n, geometry); }
  StreamHeader header() const {
    return HeaderOf(from.dtype, geometry, from.channels, false, from.bytes);
  }
  template <class T, class Sink>
  Status Launch(const Stream& stream, const Sink& sink, uint32_t* damaged_dev,
                CUstream_st* cuda_stream) const {
    const int expected = geometry.Stride(from.width, from.channels);
    Strides strides = {0, 0, false};
    const ReaderShape* shape = kReaderShapes;
    for (; expected >= shape->rows; ++shape) strides.first = shape->rows;
    strides.end = shape->rows;
    const Status s =
        LaunchShape<T>(*shape, strides, stream, sink, damaged_dev, cuda_stream);
    if (!s.ok()) return s;
    // For a stream that was written with another width.
    strides.others = true;
    return LaunchShape<T>(*kLargestShape, strides, stream, sink, damaged_dev,
                          cuda_stream);
  }
  template <class T, class Sink>
  Status LaunchShape(const ReaderShape& shape, const Strides& strides,
                     const Stream& stream, const Sink& sink,
                     uint32_t* damaged_dev, CUstream_st* cuda_stream) const {
    return gpu::Launch(
        kOnGpu, "decoding", DecodeChunks<T, Sink>,
        CeilDiv(geometry.chunks, shape.warps), shape.warps * kWarpLanes,
        sizeof(ReaderTables) + shape.warps * HistoryBytes(shape.rows),
        cuda_stream, stream, geometry, BuiltIn(), shape.rows, strides, sink,
        damaged_dev);
  }
};

}  // namespace
}  // namespace comptrain::rans

constexpr comptrain::GpuDecoder comptrain::kGpuRansDecoder =
    gpu::kDecoderOf<rans::Reader>;
