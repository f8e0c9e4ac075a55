// Codec B on a GPU: a block a chunk to encode it, a warp a chunk to decode it.
//
// Coding a chunk is a chain of as many steps as it has rows, which one warp goes
// through. The block's other warps look up what that one needs next, and the
// codes of a chunk are in shared memory: four blocks fit on a large GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "cc/codec/check_params.h"
#include "cc/codec/half.h"
#include "cc/codec/quantize.h"
#include "cc/codec/rans_gpu.h"
#include "cc/codec/rans_lane.h"
#include "cc/codec/rans_layout.h"
#include "cc/codec/stream_gpu_kernels.h"

namespace comptrain {
namespace {

using gpu::BlockSums;
using rans::ChunkHead;
using rans::ChunkKind;
using rans::ChunkPlace;
using rans::Column;
using rans::Geometry;
using rans::History;
using rans::kContexts;
using rans::kLanes;
using rans::kTokens;
using rans::LaneTables;
using rans::Quantizer;
using rans::ReaderTables;
using rans::Sample;
using rans::TableHead;
using rans::WriterModel;

constexpr char kCodec[] = "codec B on the GPU";

using Writer = rans::ChunkWriter;
constexpr int kTeamThreads = Writer::kWarps * kWarpLanes;

constexpr int kGatherThreads = 256;
// Blocks that look for chunks to encode again: there are few, or all.
constexpr int64_t kAgainBlocks = 2048;

__constant__ const LaneTables kTables = rans::kLaneTables;

// kBuiltInFrequencies, as an argument of kernels.
struct BuiltIn {
  uint16_t freq[2][kContexts * kTokens];

  BuiltIn() { std::memcpy(freq, rans::kBuiltInFrequencies, sizeof freq); }
};

// Bits per value of the slice of scratch that a chunk is first encoded to.
constexpr int kScratchBits = 5;

// Sections of scratch, in bytes.
struct Scratch {
  uint64_t sample, model, words, starts, sums, slices, bytes;
  uint64_t slice_words;  // of a chunk, head included

  Scratch(const Geometry& g, DType dtype) {
    const uint64_t values = uint64_t{kLanes} << g.log2_pixels;
    slice_words = std::min<uint64_t>(
        sizeof(ChunkHead) / 4 + values * kScratchBits / 32,
        rans::RawWords(static_cast<int>(values), dtype));
    const uint64_t chunks = static_cast<uint64_t>(g.chunks);
    sample = 0;
    model = AlignSection(sample + sizeof(Sample));
    words = AlignSection(model + sizeof(WriterModel));
    starts = AlignSection(words + 4 * chunks);
    sums = AlignSection(starts + 4 * chunks);
    slices = AlignSection(sums + sizeof(BlockSums) * chunks);
    bytes = AlignSection(slices + chunks * SliceBytes());
  }
  uint64_t SliceBytes() const { return sizeof(uint32_t) + 4 * slice_words; }
};

// --- Device: encoding ----------------------------------------------------------

// What every kernel that reads the tensor is given.
template <class T>
struct Source {
  Quantizer quantizer;
  Geometry geometry;
  int stride;
  const T* x;
};

// The shared memory of a team.
struct TeamMemory {
  LaneTables* tables;
  rans::WriterMemory* writer;
  // Entries to code with, or counts of them.
  rans::CodeEntry* entries;
  uint16_t* q;
  uint8_t* c;

  static __host__ __device__ int Rows(const Geometry& g) {
    return rans::kPadRows + (1 << g.log2_pixels);
  }
  static size_t Bytes(const Geometry& g) {
    return sizeof(rans::CodeEntry) * kContexts * kTokens +
           static_cast<size_t>(Rows(g)) * kLanes * 3 +
           sizeof(rans::WriterMemory) + sizeof(LaneTables);
  }
  __device__ TeamMemory(const Geometry& g, uint8_t* memory) {
    entries = reinterpret_cast<rans::CodeEntry*>(memory);
    q = reinterpret_cast<uint16_t*>(entries + kContexts * kTokens);
    c = reinterpret_cast<uint8_t*>(q + Rows(g) * kLanes);
    writer = reinterpret_cast<rans::WriterMemory*>(c + Rows(g) * kLanes);
    tables = reinterpret_cast<LaneTables*>(writer + 1);
  }
};

// By all threads of a block, which then synchronize.
__device__ void LoadTables(int shift, LaneTables* tables) {
  auto* to = reinterpret_cast<uint32_t*>(tables);
  for (int i = threadIdx.x; i < rans::kLaneTableWords; i += blockDim.x) {
    to[i] = rans::ShiftedWord(kTables, i, shift);
  }
}

template <class T>
__device__ ChunkKind Prepare(const Source<T>& source, Writer* writer,
                             int64_t chunk, int most_rows,
                             rans::LaneSums* sums, int* rows) {
  const ChunkPlace place = source.geometry.Place(chunk);
  Quantizer q = source.quantizer;
  q.counter = static_cast<uint32_t>(place.first);
  *rows = rans::Smaller(place.rows, most_rows);
  return writer->Prepare(q, source.geometry, place, *rows, source.x, sums);
}

__device__ void AddTo(uint64_t* total, uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(total), value);
}

// For shift and prior: a block each of a few chunks.
template <class T>
__global__ void __launch_bounds__(kTeamThreads)
    SampleChunks(Source<T> source, int64_t step, Sample* sample) {
  const TeamMemory memory(source.geometry, gpu::SharedMemory());
  LoadTables(0, memory.tables);
  __syncthreads();
  Writer writer(*memory.tables, source.stride, 0, memory.writer, memory.q,
                memory.c);
  rans::LaneSums sums;
  int rows;
  if (Prepare(source, &writer, step / 2 + blockIdx.x * step, rans::kShiftRows,
              &sums, &rows) != ChunkKind::kCoded) {
    return;
  }
  const int lane = threadIdx.x % kLanes;
  // At most 2^15 a value.
  const int sum = gpu::WarpSum(static_cast<int>(writer.code_sum()));
  if (lane == 0) AddTo(&sample->sum, static_cast<uint64_t>(sum));
  if (threadIdx.x != 0) return;
  AddTo(&sample->count, static_cast<uint64_t>(rows) * kLanes);
  AddTo(&sample->lanes, kLanes);
  AddTo(&sample->negative, PopCount(writer.negative()));
}

// Counts contexts and tokens: a block a chunk.
template <class T>
__global__ void __launch_bounds__(kTeamThreads)
    CountChunks(Source<T> source, int64_t step, Sample* sample) {
  const TeamMemory memory(source.geometry, gpu::SharedMemory());
  const int shift = rans::ShiftFor(sample->sum, sample->count);
  auto* counts = reinterpret_cast<uint32_t*>(memory.entries);
  LoadTables(shift, memory.tables);
  for (int i = threadIdx.x; i < kContexts * kTokens; i += kTeamThreads) {
    counts[i] = 0;
  }
  __syncthreads();
  Writer writer(*memory.tables, source.stride, shift, memory.writer,
                memory.q, memory.c);
  rans::LaneSums sums;
  int rows;
  if (Prepare(source, &writer, blockIdx.x * step, rans::kMaxPixels, &sums,
              &rows) != ChunkKind::kCoded) {
    return;
  }
  writer.Rows(rows, [&](int t) { atomicAdd(counts + writer.IndexAt(t), 1); });
  for (int i = threadIdx.x; i < kContexts * kTokens; i += kTeamThreads) {
    if (counts[i] != 0) AddTo(sample->counts + i, counts[i]);
  }
}

// A thread a context.
__global__ void __launch_bounds__(kContexts)
    FinishModel(BuiltIn built_in, bool counted, const Sample* sample,
                WriterModel* model) {
  model->Fill(*sample, counted, built_in.freq, threadIdx.x);
}

// Where a chunk is encoded to, and where it comes to be.
struct Target {
  uint32_t* words;  // of 32 bits, by chunk
  BlockSums* sums;
  uint8_t* slices;
  uint64_t slice_words;
  // Only when encoding again:
  const uint32_t* starts;
  uint32_t* payload;

  __device__ uint32_t* Slice(int64_t chunk) const {
    return reinterpret_cast<uint32_t*>(slices + chunk * (4 + 4 * slice_words));
  }
};
constexpr int kHeadWords = sizeof(ChunkHead) / 4;

template <class T>
__device__ uint32_t RawWords(const ChunkPlace& place) {
  return (place.valid * static_cast<uint32_t>(sizeof(T)) + 3) / 4;
}

// A block a chunk; kAgain: blocks look for chunks that did not fit their slice,
// and encode them to the payload.
template <class T, bool kAgain>
__global__ void __launch_bounds__(kTeamThreads)
    EncodeChunks(Source<T> source, const WriterModel* model, Target target) {
  const TeamMemory memory(source.geometry, gpu::SharedMemory());
  const int shift = model->shift;
  LoadTables(shift, memory.tables);
  for (int i = threadIdx.x; i < kContexts * kTokens; i += kTeamThreads) {
    memory.entries[i] = model->entries[i];
  }
  __syncthreads();
  Writer writer(*memory.tables, source.stride, shift, memory.writer,
                memory.q, memory.c);
  for (int64_t chunk = blockIdx.x; chunk < source.geometry.chunks;
       chunk += gridDim.x) {
    uint32_t* slice = target.Slice(chunk);
    const uint32_t raw_words = RawWords<T>(source.geometry.Place(chunk));
    const uint32_t words_before = kAgain ? target.words[chunk] : 0;
    if (kAgain &&
        (words_before <= target.slice_words || words_before >= raw_words)) {
      continue;
    }
    rans::LaneSums sums;
    int rows;
    const ChunkKind kind = Prepare(source, &writer, chunk, rans::kMaxPixels,
                                   &sums, &rows);
    if (kAgain) {
      const int n_words = static_cast<int>(slice[0]);
      uint32_t* to = target.payload + target.starts[chunk];
      auto* out = reinterpret_cast<uint16_t*>(to + kHeadWords);
      if (n_words % 2 != 0 && threadIdx.x == 0) out[0] = 0;
      writer.Encode(memory.entries, out + n_words % 2, n_words,
                    reinterpret_cast<ChunkHead*>(to));
      continue;
    }
    uint32_t words = kind == ChunkKind::kZero ? 0 : raw_words;
    if (kind == ChunkKind::kCoded) {
      const int n_words = writer.Encode(
          memory.entries, reinterpret_cast<uint16_t*>(slice + 1 + kHeadWords),
          static_cast<int>(2 * (target.slice_words - kHeadWords)),
          reinterpret_cast<ChunkHead*>(slice + 1));
      words = rans::Smaller<uint32_t>(words, kHeadWords + (n_words + 1) / 2);
      if (threadIdx.x == 0) slice[0] = static_cast<uint32_t>(n_words);
    }
    if (threadIdx.x == 0) target.words[chunk] = words;
    double sum = sums.sum + sums.large_sum;
    double sum_sq = sums.sum_sq + sums.large_sum_sq;
    for (int d = kWarpLanes / 2; d > 0; d /= 2) {
      sum += __shfl_down_sync(kAllLanes, sum, d);
      sum_sq += __shfl_down_sync(kAllLanes, sum_sq, d);
    }
    const BlockSums of_warp = {static_cast<uint64_t>(gpu::WarpSum(sums.nonzero)),
                               sum, sum_sq};
    gpu::PutBlockSums<Writer::kWarps>(of_warp, target.sums);
  }
}

// Header, directory and table with their padding: words of 4 bytes.
__global__ void WriteRansHead(StreamHeader header, int stride, bool counted,
                              const WriterModel* model, const uint32_t* starts,
                              uint32_t* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t byte = 4 * i;
  if (byte >= header.payload_offset) return;
  uint32_t word = 0;
  if (byte < header.directory_offset) {
    memcpy(&word, reinterpret_cast<const uint8_t*>(&header) + byte, 4);
  } else if (byte < header.table_offset) {
    const int64_t chunk = (byte - header.directory_offset) / 4;
    if (chunk < header.n_chunks) word = starts[chunk];
  } else {
    TableHead table = {};
    table.stride = static_cast<uint32_t>(stride);
    table.shift = static_cast<uint8_t>(model->shift);
    table.table = static_cast<uint8_t>(model->table);
    const int64_t at = byte - header.table_offset;
    const int64_t freq_at = at - static_cast<int64_t>(sizeof table);
    if (freq_at < 0) {
      memcpy(&word, reinterpret_cast<const uint8_t*>(&table) + at, 4);
    } else if (counted) {
      word = model->freq[freq_at / 2] |
             static_cast<uint32_t>(model->freq[freq_at / 2 + 1]) << 16;
    }
  }
  out[i] = word;
}

// A block a chunk: from its slice, or from the tensor where it is raw.
template <class T>
__global__ void __launch_bounds__(kGatherThreads)
    GatherChunks(Source<T> source, Target target) {
  const int64_t chunk = blockIdx.x;
  const uint32_t words = target.words[chunk];
  if (words == 0) return;
  const ChunkPlace place = source.geometry.Place(chunk);
  uint32_t* to = target.payload + target.starts[chunk];
  if (words == RawWords<T>(place)) {
    const int lane = threadIdx.x % kLanes;
    const Column column = source.geometry.ColumnOf(place, lane);
    T* raw = reinterpret_cast<T*>(to);
    if (threadIdx.x == 0 && sizeof(T) == 2 && place.valid % 2 != 0) {
      raw[place.valid] = T();
    }
    for (int t = threadIdx.x / kLanes; t < column.rows;
         t += kGatherThreads / kLanes) {
      raw[column.raw + t * source.geometry.unit] =
          source.x[column.first + t * source.geometry.row];
    }
    return;
  }
  if (words > target.slice_words) return;  // to be encoded again
  const uint32_t* slice = target.Slice(chunk);
  const int odd = slice[0] % 2;
  const auto* from = reinterpret_cast<const uint16_t*>(slice + 1 + kHeadWords);
  for (int i = threadIdx.x; i < static_cast<int>(words); i += kGatherThreads) {
    if (i < kHeadWords) {
      to[i] = slice[1 + i];
      continue;
    }
    const int at = 2 * (i - kHeadWords) - odd;
    const uint32_t low = at < 0 ? 0 : from[at];
    to[i] = low | static_cast<uint32_t>(from[at + 1]) << 16;
  }
}

// --- Device: decoding ----------------------------------------------------------

// What a decoder makes of a value: its place in the tensor, from a code by
// kCoding or as it is stored.
template <class T>
struct Values {
  T* out;

  template <Coding kCoding>
  __device__ void Put(const Quantizer& q, int64_t at, int code,
                      uint32_t number) const {
    T value;
    FromFloat(DequantizeValue<kCoding>(q, code, number), &value);
    out[at] = value;
  }
  __device__ void PutRaw(int64_t at, T value) const { out[at] = value; }
};
template <class T>
struct MaskedGradient {
  const T* dy;
  T* dx;

  template <Coding>
  __device__ void Put(const Quantizer&, int64_t at, int code, uint32_t) const {
    dx[at] = code != 0 ? dy[at] : T();
  }
  __device__ void PutRaw(int64_t at, T value) const {
    dx[at] = CountsAsZero(ToFloat(value)) ? T() : dy[at];
  }
};

struct Stream {
  const uint8_t* bytes;
  uint64_t n_bytes;
  // All but flags, step, inv and the offset of the payload, which the stream
  // says, and that of a stream with built-in frequencies in its place.
  StreamHeader expected;
  bool any_codec;
};

// How a block reads a stream: codes of how many rows its warps hold on to. Most
// images are narrow, and the fewer rows, the more warps fit on a multiprocessor.
struct ReaderShape {
  int rows, warps;
};
// Bytes of a warp's History; its sizes go back twice as far as its codes.
__host__ __device__ constexpr int SizeRows(int code_rows) {
  return code_rows < rans::kMaxPixels / 2 ? 2 * code_rows : rans::kMaxPixels;
}
__host__ __device__ constexpr int HistoryBytes(int code_rows) {
  return kLanes * (2 * code_rows + SizeRows(code_rows));
}
constexpr ReaderShape kReaderShapes[] = {{32, 4}, {64, 4}, {128, 2}, {512, 1}};

struct OpenedStream {
  Quantizer quantizer;
  int stride, shift;
  int table;
  uint64_t payload, payload_words;
};

// Whether header and table are as the host expects them; frequencies are left.
__device__ bool OpenRans(const Stream& s, DType dtype, OpenedStream* o) {
  StreamHeader h;
  memcpy(&h, s.bytes, sizeof h);
  const uint8_t coding = h.flags & (kMidRise | kDither);
  o->quantizer.coding = coding & kDither    ? Coding::kDither
                        : coding & kMidRise ? Coding::kMidRise
                                            : Coding::kPlain;
  o->quantizer.dtype = dtype;
  o->quantizer.step = h.step;
  const StreamHeader& e = s.expected;
  if (s.n_bytes < e.payload_offset) return false;
  TableHead table;
  memcpy(&table, s.bytes + e.table_offset, sizeof table);
  o->stride = static_cast<int>(table.stride);
  o->shift = table.shift;
  o->table = table.table;
  o->payload = e.payload_offset +
               (table.table == rans::kCountedTable ? rans::kFrequencyBytes : 0);
  const bool right =
      h.magic == e.magic && h.version == e.version && h.codec == e.codec &&
      h.dtype == e.dtype && h.n == e.n && h.channels == e.channels &&
      h.flags == (e.flags | coding) && coding != (kMidRise | kDither) &&
      h.log2_pixels == e.log2_pixels && h.total_bytes == e.total_bytes &&
      h.n_chunks == e.n_chunks && h.directory_offset == e.directory_offset &&
      h.table_offset == e.table_offset && h.payload_offset == o->payload &&
      h.step > 0 && table.table <= rans::kCountedTable &&
      table.shift <= rans::kMaxShift && table.stride >> e.log2_pixels == 0 &&
      o->payload <= s.n_bytes && (s.n_bytes - o->payload) % 4 == 0;
  if (right) o->payload_words = (s.n_bytes - o->payload) / 4;
  return right;
}

template <Coding kCoding, class Sink>
__device__ bool ReadCoded(const Quantizer& q, const Geometry& geometry,
                          const ChunkPlace& place, const OpenedStream& o,
                          const ReaderTables& tables, const uint32_t* words,
                          int n_words, const History& history,
                          const Sink& sink) {
  const auto* head = reinterpret_cast<const ChunkHead*>(words);
  // Of the lane whose state this thread has.
  const int lane = rans::LaneOfState(threadIdx.x % kWarpLanes);
  const Column column = geometry.ColumnOf(place, lane);
  return rans::ReadChunk(
      tables, o.stride, o.shift, *head,
      reinterpret_cast<const uint16_t*>(words + kHeadWords),
      2 * (n_words - kHeadWords), place.rows, history,
      [&](int t, int code) {
        if (t >= column.rows) return;
        sink.template Put<kCoding>(
            q, column.first + t * geometry.row, code,
            q.counter + static_cast<uint32_t>(t * kLanes + lane));
      });
}

// A warp a chunk, the shape's warps a block. Streams whose stride asks for
// another shape are left to that one's launch.
template <class T, class Sink>
__global__ void DecodeChunks(Stream s, DType dtype, Geometry geometry,
                             BuiltIn built_in, int shape_rows, int fewer_rows,
                             Sink sink, uint32_t* damaged) {
  if (s.any_codec && gpu::IsAnothers(s.bytes, CodecId::kRans)) return;
  OpenedStream o;
  bool good = OpenRans(s, dtype, &o);
  if (!good) o.stride = o.shift = 0;
  if (o.stride >= shape_rows || o.stride < fewer_rows) return;

  auto* tables = reinterpret_cast<ReaderTables*>(gpu::SharedMemory());
  LoadTables(o.shift, &tables->lane);
  if (good) {
    const auto* counted = reinterpret_cast<const uint16_t*>(
        s.bytes + s.expected.table_offset + sizeof(TableHead));
    const uint16_t* freq = o.table == rans::kCountedTable
                               ? counted
                               : built_in.freq[o.table];
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
    const auto* payload = reinterpret_cast<const uint32_t*>(s.bytes + o.payload);
    const uint64_t start = starts[chunk];
    const uint64_t stop = chunk + 1 == geometry.chunks ? o.payload_words
                                                       : starts[chunk + 1];
    good = start <= stop && stop <= o.payload_words &&
           (chunk > 0 || start == 0) && stop - start <= raw_words;
    const int n_words = static_cast<int>(stop - start);
    if (good && n_words == static_cast<int>(raw_words)) {
      const T* raw = reinterpret_cast<const T*>(payload + start);
      for (int t = 0; t < column.rows; ++t) {
        sink.PutRaw(column.first + t * geometry.row,
                    raw[column.raw + t * geometry.unit]);
      }
      return;
    }
    if (good && n_words > 0) {
      auto* codes = reinterpret_cast<uint16_t*>(
          reinterpret_cast<uint8_t*>(tables + 1) +
          warp * HistoryBytes(shape_rows));
      const History history = {
          codes, reinterpret_cast<uint8_t*>(codes + shape_rows * kLanes),
          shape_rows, SizeRows(shape_rows)};
      Quantizer q = o.quantizer;
      q.counter = static_cast<uint32_t>(place.first);
      const uint32_t* words = payload + start;
      good = n_words >= kHeadWords;
      if (good && q.coding == Coding::kMidRise) {
        good = ReadCoded<Coding::kMidRise>(q, geometry, place, o, *tables, words,
                                           n_words, history, sink);
      } else if (good && q.coding == Coding::kDither) {
        good = ReadCoded<Coding::kDither>(q, geometry, place, o, *tables, words,
                                          n_words, history, sink);
      } else if (good) {
        good = ReadCoded<Coding::kPlain>(q, geometry, place, o, *tables, words,
                                         n_words, history, sink);
      }
      if (good) return;
    }
  }
  if (!good && lane == 0) *damaged = 1;
  for (int t = 0; t < column.rows; ++t) {
    sink.PutRaw(column.first + t * geometry.row, T());
  }
}

// --- Host --------------------------------------------------------------------

Status CheckGeometry(int64_t n, const Geometry& g) {
  return CheckSize(CodecId::kRans, n, g.chunks, rans::Sections(g, true).payload);
}

Status CheckEncode(const RansParams& p) {
  const Status s = CheckParams(CodecId::kRans, p, Isa::kScalar);
  return s.ok() ? CheckGeometry(p.n, Geometry(p.n, p.channels)) : s;
}

bool Counted(const RansParams& p) { return p.n >= p.counted_from; }

template <class T>
Source<T> SourceOf(const RansParams& p, const Geometry& g, const void* x_dev) {
  return {plane::MakeQuantizer(p.dtype, plane::CodingOf(p), p.eb), g,
          g.Stride(p.width, p.channels), static_cast<const T*>(x_dev)};
}

Target TargetOf(const Scratch& at, uint8_t* scratch) {
  Target t = {};
  t.words = reinterpret_cast<uint32_t*>(scratch + at.words);
  t.sums = reinterpret_cast<BlockSums*>(scratch + at.sums);
  t.slices = scratch + at.slices;
  t.slice_words = at.slice_words;
  t.starts = reinterpret_cast<const uint32_t*>(scratch + at.starts);
  return t;
}

StreamHeader HeaderOf(DType dtype, const Geometry& g, int64_t channels,
                      bool counted, uint64_t total_bytes) {
  StreamHeader h = MakeHeader(CodecId::kRans, dtype, g.n, channels,
                              g.log2_pixels, g.chunks,
                              rans::Sections(g, counted), total_bytes);
  h.flags = static_cast<uint8_t>(g.flat ? kFlat : 0);
  return h;
}

// The first pass; there is a model of an empty tensor too.
template <class T>
Status EncodeToScratch(const RansParams& p, const Geometry& g, const void* x_dev,
                       uint8_t* scratch, CUstream_st* stream) {
  const Scratch at(g, p.dtype);
  const Source<T> source = SourceOf<T>(p, g, x_dev);
  auto* sample = reinterpret_cast<Sample*>(scratch + at.sample);
  auto* model = reinterpret_cast<WriterModel*>(scratch + at.model);
  const size_t shared_bytes = TeamMemory::Bytes(g);
  const int64_t shift_step = g.ShiftStep(), count_step = g.CountStep();
  Status s = gpu::CheckCuda(
      kCodec, cudaMemsetAsync(sample, 0, sizeof *sample, stream),
      "clearing scratch");
  if (s.ok() && g.chunks > 0) {
    s = gpu::Launch(kCodec, "sampling", SampleChunks<T>,
                    CeilDiv(g.chunks - shift_step / 2, shift_step),
                    kTeamThreads, shared_bytes, stream, source, shift_step,
                    sample);
  }
  if (s.ok() && g.chunks > 0 && Counted(p)) {
    s = gpu::Launch(kCodec, "counting", CountChunks<T>,
                    CeilDiv(g.chunks, count_step), kTeamThreads,
                    shared_bytes, stream, source, count_step, sample);
  }
  if (s.ok()) {
    s = gpu::Launch(kCodec, "making tables", FinishModel, 1, kContexts, 0,
                    stream, BuiltIn(), Counted(p), sample, model);
  }
  if (!s.ok() || g.chunks == 0) return s;
  return gpu::Launch(kCodec, "encoding", EncodeChunks<T, false>, g.chunks,
                     kTeamThreads, shared_bytes, stream, source, model,
                     TargetOf(at, scratch));
}

// The second one, after the header.
template <class T>
Status CopyFromScratch(const RansParams& p, const Geometry& g, const void* x_dev,
                       uint8_t* scratch, uint32_t* payload, CUstream_st* stream) {
  const Scratch at(g, p.dtype);
  const Source<T> source = SourceOf<T>(p, g, x_dev);
  const auto* model = reinterpret_cast<const WriterModel*>(scratch + at.model);
  Target target = TargetOf(at, scratch);
  target.payload = payload;
  const Status s =
      gpu::Launch(kCodec, "copying chunks", GatherChunks<T>, g.chunks,
                  kGatherThreads, 0, stream, source, target);
  if (!s.ok()) return s;
  return gpu::Launch(kCodec, "encoding again", EncodeChunks<T, true>,
                     std::min(g.chunks, kAgainBlocks), kTeamThreads,
                     TeamMemory::Bytes(g), stream, source, model, target);
}

// Decodes with make_sink(T()), a function from the storage type to a sink.
template <class MakeSink>
Status Decode(const GpuEncoded& from, CUstream_st* stream,
              const MakeSink& make_sink) {
  Status checked =
      CheckTensor(CodecId::kRans, from.n, from.channels, from.dtype, Isa::kScalar);
  if (!checked.ok()) return checked;
  const Geometry g(from.n, from.channels);
  checked = CheckGeometry(from.n, g);
  if (!checked.ok()) return checked;
  checked =
      gpu::CheckStreamBytes(kCodec, from, rans::Sections(g, false).payload);
  if (!checked.ok() || from.n == 0) return checked;
  const Stream view = {static_cast<const uint8_t*>(from.stream_dev), from.bytes,
                       HeaderOf(from.dtype, g, from.channels, false, from.bytes),
                       from.any_codec};
  WithStorageType(from.dtype, [&](auto type) {
    using T = decltype(type);
    const auto sink = make_sink(type);
    int fewer_rows = 0;
    for (const ReaderShape& shape : kReaderShapes) {
      if (!checked.ok() || fewer_rows >> g.log2_pixels != 0) break;
      checked = gpu::Launch(
          kCodec, "decoding", DecodeChunks<T, decltype(make_sink(type))>,
          CeilDiv(g.chunks, shape.warps), shape.warps * kWarpLanes,
          sizeof(ReaderTables) + shape.warps * HistoryBytes(shape.rows),
          stream, view, from.dtype, g, BuiltIn(), shape.rows, fewer_rows, sink,
          from.damaged_dev);
      fewer_rows = shape.rows;
    }
  });
  return checked;
}

}  // namespace

size_t RansGpuScratchBytes(const RansParams& params) {
  if (!CheckEncode(params).ok()) return 0;
  return Scratch(Geometry(params.n, params.channels), params.dtype).bytes;
}

size_t RansGpuBytes(const RansParams& params, const GpuTotals& totals) {
  const Geometry g(params.n, params.channels);
  return rans::Sections(g, Counted(params)).payload + 4 * totals.words;
}

Status RansGpuMeasure(const RansParams& params, const void* x_dev,
                      void* scratch_dev, GpuTotals* totals,
                      CUstream_st* stream) {
  Status s = CheckEncode(params);
  if (!s.ok()) return s;
  const Geometry g(params.n, params.channels);
  const Scratch at(g, params.dtype);
  auto* scratch = static_cast<uint8_t*>(scratch_dev);
  WithStorageType(params.dtype, [&](auto type) {
    s = EncodeToScratch<decltype(type)>(params, g, x_dev, scratch, stream);
  });
  if (!s.ok()) return s;
  return gpu::Launch(kCodec, "adding up sizes", gpu::ScanRanges, 1,
                     gpu::kScanThreads, 0, stream, g.chunks,
                     reinterpret_cast<const uint32_t*>(scratch + at.words),
                     reinterpret_cast<uint32_t*>(scratch + at.starts), g.chunks,
                     reinterpret_cast<const BlockSums*>(scratch + at.sums),
                     totals);
}

Status RansGpuWrite(const RansParams& params, const void* x_dev,
                    const void* scratch_dev, const GpuTotals& totals,
                    void* out_dev, CUstream_st* stream) {
  Status s = CheckEncode(params);
  if (!s.ok()) return s;
  s = CheckWords(CodecId::kRans, totals.words);
  if (!s.ok()) return s;
  const Geometry g(params.n, params.channels);
  const Scratch at(g, params.dtype);
  auto* scratch = static_cast<uint8_t*>(const_cast<void*>(scratch_dev));
  const Quantizer q = plane::MakeQuantizer(
      params.dtype, plane::CodingOf(params), params.eb);
  StreamHeader h = HeaderOf(params.dtype, g, params.channels, Counted(params),
                            RansGpuBytes(params, totals));
  h.flags = plane::FlagsOf(q.coding, g.flat);
  h.step = q.step;
  h.inv = q.inv;
  auto* out = static_cast<uint32_t*>(out_dev);
  s = gpu::Launch(kCodec, "writing the header", WriteRansHead,
                  CeilDiv(h.payload_offset / 4, gpu::kHeadThreads),
                  gpu::kHeadThreads, 0, stream, h,
                  g.Stride(params.width, params.channels), Counted(params),
                  reinterpret_cast<const WriterModel*>(scratch + at.model),
                  reinterpret_cast<const uint32_t*>(scratch + at.starts), out);
  if (!s.ok() || g.chunks == 0) return s;
  WithStorageType(params.dtype, [&](auto type) {
    s = CopyFromScratch<decltype(type)>(params, g, x_dev, scratch,
                                        out + h.payload_offset / 4, stream);
  });
  return s;
}

Status RansGpuDecode(const GpuEncoded& from, void* out_dev,
                     CUstream_st* stream) {
  return Decode(from, stream, [&](auto type) {
    using T = decltype(type);
    return Values<T>{static_cast<T*>(out_dev)};
  });
}

Status RansGpuMaskGradient(const GpuEncoded& from, const void* dy_dev,
                           void* dx_dev, CUstream_st* stream) {
  return Decode(from, stream, [&](auto type) {
    using T = decltype(type);
    return MaskedGradient<T>{static_cast<const T*>(dy_dev),
                             static_cast<T*>(dx_dev)};
  });
}

}  // namespace comptrain
