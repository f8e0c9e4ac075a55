// Encodes chunks of rans on a GPU: a block a chunk.
//
// Coding a chunk is a chain of as many steps as it has rows, which one warp
// goes through. The block's other warps look up what that one needs next, and
// the codes of a chunk are in shared memory: four blocks fit on a large GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "cc/codec/common/half.h"
#include "cc/codec/rans/gpu.h"
#include "cc/codec/rans/gpu_chunk.h"
#include "cc/codec/stream/quantize.h"

namespace comptrain::rans {
namespace {

using gpu::BlockSums;
using Writer = ChunkWriter;
constexpr int kTeamThreads = Writer::kWarps * kWarpLanes;

constexpr int kGatherThreads = 256;
// Blocks that look for chunks to encode again: there are few, or all.
constexpr int64_t kAgainBlocks = 2048;

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
        comptrain::RawWords(static_cast<int>(values), dtype));
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

// --- Device ------------------------------------------------------------------

// What every kernel that reads the tensor is given.
template <class T>
struct Source {
  Quantizer quantizer;
  Geometry geometry;
  int stride;
  const T* x;
  ChunkScales scales;
};

// The shared memory of a team.
struct TeamMemory {
  LaneTables* tables;
  WriterMemory* writer;
  // Entries to code with, or counts of them.
  CodeEntry* entries;
  uint16_t* q;
  uint8_t* c;

  static __host__ __device__ int Rows(const Geometry& g) {
    return kPadRows + (1 << g.log2_pixels);
  }
  static size_t Bytes(const Geometry& g) {
    return sizeof(CodeEntry) * kContexts * kTokens +
           static_cast<size_t>(Rows(g)) * kLanes * 3 + sizeof(WriterMemory) +
           sizeof(LaneTables);
  }
  __device__ TeamMemory(const Geometry& g, uint8_t* memory) {
    entries = reinterpret_cast<CodeEntry*>(memory);
    q = reinterpret_cast<uint16_t*>(entries + kContexts * kTokens);
    c = reinterpret_cast<uint8_t*>(q + Rows(g) * kLanes);
    writer = reinterpret_cast<WriterMemory*>(c + Rows(g) * kLanes);
    tables = reinterpret_cast<LaneTables*>(writer + 1);
  }
};

template <class T>
__device__ ChunkKind Prepare(const Source<T>& source, Writer* writer,
                             int64_t chunk, int most_rows, int* nonzero,
                             int* rows) {
  const ChunkPlace place = source.geometry.Place(chunk);
  Quantizer q = source.quantizer;
  q.counter = q.seed + static_cast<uint32_t>(place.first);
  *rows = Smaller(place.rows, most_rows);
  return writer->Prepare(q, source.scales, source.geometry, place, *rows,
                         source.x, nonzero);
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
  int nonzero;
  int rows;
  if (Prepare(source, &writer, step / 2 + blockIdx.x * step, kShiftRows,
              &nonzero, &rows) != ChunkKind::kCoded) {
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
  const int shift = ShiftFor(sample->sum, sample->count);
  auto* counts = reinterpret_cast<uint32_t*>(memory.entries);
  LoadTables(shift, memory.tables);
  for (int i = threadIdx.x; i < kContexts * kTokens; i += kTeamThreads) {
    counts[i] = 0;
  }
  __syncthreads();
  Writer writer(*memory.tables, source.stride, shift, memory.writer, memory.q,
                memory.c);
  int nonzero;
  int rows;
  if (Prepare(source, &writer, blockIdx.x * step, kMaxPixels, &nonzero,
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

// Whether a chunk of so many words has to be encoded again; one that is raw is
// copied.
__device__ bool FitsNoSlice(const Target& target, uint32_t words,
                            uint32_t raw_words) {
  return words > target.slice_words && words < raw_words;
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
  Writer writer(*memory.tables, source.stride, shift, memory.writer, memory.q,
                memory.c);
  for (int64_t chunk = blockIdx.x; chunk < source.geometry.chunks;
       chunk += gridDim.x) {
    uint32_t* slice = target.Slice(chunk);
    const uint32_t raw_words = RawWords<T>(source.geometry.Place(chunk));
    const uint32_t words_before = kAgain ? target.words[chunk] : 0;
    if (kAgain && !FitsNoSlice(target, words_before, raw_words)) continue;
    int nonzero;
    int rows;
    const ChunkKind kind =
        Prepare(source, &writer, chunk, kMaxPixels, &nonzero, &rows);
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
      words = Smaller<uint32_t>(words, kHeadWords + (n_words + 1) / 2);
      if (threadIdx.x == 0) slice[0] = static_cast<uint32_t>(n_words);
    }
    if (threadIdx.x == 0) target.words[chunk] = words;
    const BlockSums of_warp = {
        static_cast<uint64_t>(gpu::WarpSum(nonzero)),
        uint64_t{threadIdx.x == 0 && FitsNoSlice(target, words, raw_words)}};
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

// --- Host --------------------------------------------------------------------

Status CheckEncode(const EncodeParams& p) {
  const Status s = CheckParams(CodecId::kRans, p, Isa::kScalar);
  return s.ok() ? CheckGeometry(p.n, Geometry(p.n, p.channels)) : s;
}

bool Counted(const EncodeParams& p) { return p.n >= p.counted_from; }

template <class T>
Source<T> SourceOf(const EncodeParams& p, const Geometry& g,
                   const void* x_dev) {
  return {QuantizerOf(p),
          g,
          g.Stride(p.width, p.channels),
          static_cast<const T*>(x_dev),
          {p.scales, p.channels}};
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

// The first pass; there is a model of an empty tensor too.
template <class T>
Status EncodeToScratch(const EncodeParams& p, const Geometry& g,
                       const void* x_dev, uint8_t* scratch,
                       CUstream_st* cuda_stream) {
  const Scratch at(g, p.dtype);
  const Source<T> source = SourceOf<T>(p, g, x_dev);
  auto* sample = reinterpret_cast<Sample*>(scratch + at.sample);
  auto* model = reinterpret_cast<WriterModel*>(scratch + at.model);
  const size_t shared_bytes = TeamMemory::Bytes(g);
  const int64_t shift_step = g.ShiftStep(), count_step = g.CountStep();
  Status s = gpu::CheckCuda(
      kOnGpu, cudaMemsetAsync(sample, 0, sizeof *sample, cuda_stream),
      "clearing scratch");
  if (s.ok() && g.chunks > 0) {
    s = gpu::Launch(kOnGpu, "sampling", SampleChunks<T>,
                    CeilDiv(g.chunks - shift_step / 2, shift_step),
                    kTeamThreads, shared_bytes, cuda_stream, source, shift_step,
                    sample);
  }
  if (s.ok() && g.chunks > 0 && Counted(p)) {
    s = gpu::Launch(kOnGpu, "counting", CountChunks<T>,
                    CeilDiv(g.chunks, count_step), kTeamThreads, shared_bytes,
                    cuda_stream, source, count_step, sample);
  }
  if (s.ok()) {
    s = gpu::Launch(kOnGpu, "making tables", FinishModel, 1, kContexts, 0,
                    cuda_stream, BuiltIn(), Counted(p), sample, model);
  }
  if (!s.ok() || g.chunks == 0) return s;
  return gpu::Launch(kOnGpu, "encoding", EncodeChunks<T, false>, g.chunks,
                     kTeamThreads, shared_bytes, cuda_stream, source, model,
                     TargetOf(at, scratch));
}

// The second one, after the header.
template <class T>
Status CopyFromScratch(const EncodeParams& p, const Geometry& g,
                       const void* x_dev, uint8_t* scratch, bool again,
                       uint32_t* payload, CUstream_st* cuda_stream) {
  const Scratch at(g, p.dtype);
  const Source<T> source = SourceOf<T>(p, g, x_dev);
  const auto* model = reinterpret_cast<const WriterModel*>(scratch + at.model);
  Target target = TargetOf(at, scratch);
  target.payload = payload;
  const Status s =
      gpu::Launch(kOnGpu, "copying chunks", GatherChunks<T>, g.chunks,
                  kGatherThreads, 0, cuda_stream, source, target);
  if (!s.ok() || !again) return s;
  return gpu::Launch(kOnGpu, "encoding again", EncodeChunks<T, true>,
                     std::min(g.chunks, kAgainBlocks), kTeamThreads,
                     TeamMemory::Bytes(g), cuda_stream, source, model, target);
}

size_t ScratchBytes(const EncodeParams& params) {
  if (!CheckEncode(params).ok()) return 0;
  return Scratch(Geometry(params.n, params.channels), params.dtype).bytes;
}

size_t StreamBytes(const EncodeParams& params, const GpuTotals& totals) {
  const Geometry g(params.n, params.channels);
  return Sections(g, Counted(params)).payload + 4 * totals.words +
         gpu::ScaleBytesOf(params);
}

Status Measure(const EncodeParams& params, const void* x_dev, void* scratch_dev,
               GpuTotals* totals, CUstream_st* cuda_stream) {
  Status s = CheckEncode(params);
  if (!s.ok()) return s;
  const Geometry g(params.n, params.channels);
  const Scratch at(g, params.dtype);
  auto* scratch = static_cast<uint8_t*>(scratch_dev);
  WithStorageType(params.dtype, [&](auto type) {
    s = EncodeToScratch<decltype(type)>(params, g, x_dev, scratch, cuda_stream);
  });
  if (!s.ok()) return s;
  return gpu::Launch(kOnGpu, "adding up sizes", gpu::ScanRanges, 1,
                     gpu::kScanThreads, 0, cuda_stream, g.chunks,
                     reinterpret_cast<const uint32_t*>(scratch + at.words),
                     reinterpret_cast<uint32_t*>(scratch + at.starts), g.chunks,
                     reinterpret_cast<const BlockSums*>(scratch + at.sums),
                     totals);
}

Status Write(const EncodeParams& params, const void* x_dev,
             const void* scratch_dev, const GpuTotals& totals, void* out_dev,
             CUstream_st* cuda_stream) {
  Status s = CheckEncode(params);
  if (!s.ok()) return s;
  s = CheckWords(CodecId::kRans, totals.words);
  if (!s.ok()) return s;
  const Geometry g(params.n, params.channels);
  const Scratch at(g, params.dtype);
  auto* scratch = static_cast<uint8_t*>(const_cast<void*>(scratch_dev));
  const Quantizer q = QuantizerOf(params);
  StreamHeader h = HeaderOf(params.dtype, g, params.channels, Counted(params),
                            StreamBytes(params, totals));
  SetQuantizer(q, g.flat, params.scales, &h);
  auto* out = static_cast<uint32_t*>(out_dev);
  s = gpu::Launch(kOnGpu, "writing the header", WriteRansHead,
                  CeilDiv(h.payload_offset / 4, gpu::kHeadThreads),
                  gpu::kHeadThreads, 0, cuda_stream, h,
                  g.Stride(params.width, params.channels), Counted(params),
                  reinterpret_cast<const WriterModel*>(scratch + at.model),
                  reinterpret_cast<const uint32_t*>(scratch + at.starts), out);
  if (s.ok()) {
    s = gpu::LaunchWriteScales(kOnGpu, params, h, out_dev, cuda_stream);
  }
  if (!s.ok() || g.chunks == 0) return s;
  WithStorageType(params.dtype, [&](auto type) {
    s = CopyFromScratch<decltype(type)>(
        params, g, x_dev, scratch, totals.again > 0, out + h.payload_offset / 4,
        cuda_stream);
  });
  return s;
}

}  // namespace
}  // namespace comptrain::rans

constexpr comptrain::GpuEncoder comptrain::kGpuRansEncoder = {
    rans::ScratchBytes, rans::StreamBytes, rans::Measure, rans::Write};
