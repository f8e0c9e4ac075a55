// rans, decoder and ReLU mask: checks the stream, then works chunk by
// chunk.
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "cc/codec/stream/check_params.h"
#include "cc/codec/common/half.h"
#include "cc/codec/plane/tile.h"
#include "cc/codec/rans/rans.h"
#include "cc/codec/rans/chunk.h"
#include "cc/codec/rans/layout.h"
#include "cc/codec/stream/check_stream.h"

namespace comptrain {
namespace {

using rans::ChunkHead;
using rans::ChunkPlace;
using rans::ChunkWork;
using rans::kLanes;
using rans::StreamView;

constexpr int64_t kCyclesPerValue = 4;

enum class StoredAs { kZero, kCoded, kRaw };

// What is stored of one chunk.
struct Stored {
  StoredAs kind;
  const uint8_t* bytes;
  uint64_t n_bytes;
  uint64_t readable;  // bytes of the stream from there on
  ChunkHead head;     // of a coded one
};

// False for sizes and heads that no encoder writes.
bool Find(const StreamView& v, int64_t chunk, const ChunkPlace& place,
          Stored* s) {
  const uint64_t start = v.Start(chunk), stop = v.Start(chunk + 1);
  if (start > stop || stop > v.payload_words || (chunk == 0 && start != 0)) {
    return false;
  }
  const uint64_t words = stop - start;
  const uint64_t raw = RawWords(place.valid, v.quantizer.dtype);
  s->bytes = v.stream + v.sections.payload + 4 * start;
  s->n_bytes = 4 * words;
  s->readable = 4 * (v.payload_words - start);
  s->kind = words == 0     ? StoredAs::kZero
            : words == raw ? StoredAs::kRaw
                           : StoredAs::kCoded;
  if (words > raw) return false;
  if (s->kind != StoredAs::kCoded) return true;
  if (s->n_bytes < sizeof s->head) return false;
  std::memcpy(&s->head, s->bytes, sizeof s->head);
  return (s->head.average & s->head.median) == 0;
}

// A coded chunk on its way, and the memory for it.
struct Slot {
  int64_t chunk = 0;
  ChunkPlace place;
  ChunkHead head;
  std::unique_ptr<ChunkWork> work{new ChunkWork};
  std::vector<uint8_t> padded;  // a chunk that reaches past the tensor's end
};

// One thread's part: chunks that are coded wait until there are as many as the
// kernel decodes at once. Reader: what to do with the chunks,
//   Zero(place), Raw(place, bytes): not coded;
//   Target(place, &slot): a DecodeTarget, where to decode to;
//   Finish(place, slot): decoded.
template <class Reader>
class Worker {
 public:
  Worker(const StreamView& v, const rans::ChunkKernels& kernels,
         const Reader& reader, FirstFailure* failure)
      : v_(v), kernels_(kernels), reader_(reader), failure_(failure) {}

  void Run(int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const ChunkPlace place = v_.geometry.Place(chunk);
      Stored s;
      if (!Find(v_, chunk, place, &s)) {
        failure_->Report(chunk);
      } else if (s.kind == StoredAs::kZero) {
        reader_.Zero(place);
      } else if (s.kind == StoredAs::kRaw) {
        reader_.Raw(place, s.bytes);
      } else {
        if (waiting_ > 0 && slots_[0].place.rows != place.rows) Flush();
        Add(chunk, place, s);
        if (waiting_ == kernels_.at_once) Flush();
      }
    }
    Flush();
  }

 private:
  // Readable words are all around those of a job.
  void Add(int64_t chunk, const ChunkPlace& place, const Stored& s) {
    constexpr uint64_t kSlack = 2 * rans::kSlackWords;
    Slot& slot = slots_[waiting_];
    slot.chunk = chunk;
    slot.place = place;
    slot.head = s.head;
    const uint8_t* from = s.bytes + sizeof slot.head;
    const uint64_t bytes = s.n_bytes - sizeof slot.head;
    const bool inside = s.readable >= s.n_bytes + kSlack &&
                        reinterpret_cast<uintptr_t>(from) % 2 == 0;
    if (!inside) {
      // A coded chunk is smaller than its values, so than work->words.
      uint8_t* copy = reinterpret_cast<uint8_t*>(slot.work->words);
      std::memcpy(copy, from, bytes);
      std::memset(copy + bytes, 0, kSlack);
      from = copy;
    }
    rans::DecodeJob& job = jobs_[waiting_++];
    job.head = &slot.head;
    job.words = reinterpret_cast<const uint16_t*>(from);
    job.n_words = static_cast<int>(bytes / 2);
    const Quantizer quantizer = CountedFrom(
        v_.quantizer, place.first, v_.lanes.First(chunk, place.offset));
    job.counter = quantizer.counter;
    job.first_lane = quantizer.first_lane;
    job.work = slot.work.get();
    reader_.Target(place, &slot, &job);
  }

  void Flush() {
    if (waiting_ == 0) return;
    kernels_.decode(v_.quantizer, v_.model, slots_[0].place.rows, jobs_,
                    waiting_);
    for (int i = 0; i < waiting_; ++i) {
      if (jobs_[i].ok) {
        reader_.Finish(slots_[i].place, slots_[i]);
      } else {
        failure_->Report(slots_[i].chunk);
      }
    }
    waiting_ = 0;
  }

  const StreamView& v_;
  const rans::ChunkKernels& kernels_;
  const Reader& reader_;
  FirstFailure* const failure_;
  Slot slots_[rans::kMaxJobs];
  rans::DecodeJob jobs_[rans::kMaxJobs];
  int waiting_ = 0;
};

// Reads all chunks and reports the first one that is damaged.
template <class Reader>
Status ReadChunks(StreamView* v, const ParallelFor& parallel, Isa isa,
                  const Reader& reader) {
  if (v->geometry.chunks == 0) {
    return CheckEmptyPayload(CodecId::kRans, v->payload_words);
  }
  FirstFailure failure;
  try {
    const rans::ChunkKernels kernels =
        rans::SelectKernels(isa, v->quantizer.dtype, v->quantizer.coding);
    if (kernels.needs_slots) rans::MakeSlots(&v->model);
    parallel(v->geometry.chunks,
             kCyclesPerValue * kLanes << v->geometry.log2_pixels,
             [&](int64_t begin, int64_t end) {
               Worker<Reader>(*v, kernels, reader, &failure).Run(begin, end);
             });
  } catch (const std::exception& e) {
    return OutOfMemory(CodecId::kRans, "decoding", e);
  }
  return failure.ToStatus(
      CodecId::kRans, "chunk",
      "match the directory and end in the first state, got another one");
}

Status Open(const uint8_t* stream, size_t stream_bytes, int64_t n, Isa isa,
            StreamView* v) {
  const Status s = CheckIsa(CodecId::kRans, isa);
  if (!s.ok()) return s;
  return rans::OpenStream(stream, stream_bytes, n, v);
}

// Values to a tensor.
struct ValueReader {
  const rans::Geometry& geometry;
  uint8_t* out;
  int64_t item;

  int64_t pixel_bytes() const { return geometry.row * item; }
  int64_t compact() const { return geometry.unit * item; }
  uint8_t* At(const ChunkPlace& place) const {
    return out + place.offset * item;
  }
  void Zero(const ChunkPlace& place) const {
    const int64_t bytes = place.valid * item;
    for (int64_t done = 0; done < bytes; done += compact()) {
      std::memset(At(place) + done / compact() * pixel_bytes(), 0,
                  std::min(compact(), bytes - done));
    }
  }
  void Raw(const ChunkPlace& place, const uint8_t* bytes) const {
    CopyRows(bytes, compact(), At(place), pixel_bytes(), place.valid * item,
             compact());
  }
  void Target(const ChunkPlace& place, Slot* slot, rans::DecodeJob* job) const {
    job->out = At(place);
    job->pitch = geometry.PitchOf(place.rows, pixel_bytes(), item);
    if (place.whole()) return;
    slot->padded.resize(place.rows * kLanes * item);
    job->out = slot->padded.data();
    job->pitch = geometry.PitchOf(place.rows, compact(), item);
  }
  void Finish(const ChunkPlace& place, const Slot& slot) const {
    if (!place.whole()) Raw(place, slot.padded.data());
  }
};

// dy where the code or raw value is not zero.
struct MaskReader {
  const rans::Geometry& geometry;
  const uint8_t* dy;
  uint8_t* dx;
  DType stored;
  int64_t item;  // of dy
  plane::ApplyMaskFn apply;
  rans::MaskRowsFn mask;

  void Zero(const ChunkPlace& place) const {
    Apply(place, [](int, uint32_t*) {});
  }
  void Raw(const ChunkPlace& place, const uint8_t* bytes) const {
    Apply(place, [&](int first, uint32_t* rows) {
      RawMaskRows(bytes, place, first, rows);
    });
  }
  void Target(const ChunkPlace&, Slot*, rans::DecodeJob* job) const {
    job->out = nullptr;
    job->pitch = {};
  }
  void Finish(const ChunkPlace& place, const Slot& slot) const {
    Apply(place, [&](int first, uint32_t* rows) {
      mask(*slot.work, first, std::min(place.rows, first + plane::kPixels),
           rows);
    });
  }

  // Values inside the tensor of those of run k in rows [first, first + 32),
  // which are the chunk's values from `begin` on.
  int64_t RunValues(const ChunkPlace& place, int k, int first,
                    int64_t* begin) const {
    const int64_t rows = std::min(plane::kPixels, place.rows - first);
    *begin = (int64_t{k} * place.rows + first) * geometry.unit;
    return std::max<int64_t>(
        0, std::min(rows * geometry.unit, place.valid - *begin));
  }

  void RawMaskRows(const uint8_t* bytes, const ChunkPlace& place, int first,
                   uint32_t rows[plane::kPixels]) const {
    for (int k = 0; k < geometry.runs; ++k) {
      int64_t begin;
      const int64_t count = RunValues(place, k, first, &begin);
      for (int64_t i = 0; i < count; ++i) {
        const bool set =
            (FloatBits(LoadFloat(bytes, stored, begin + i)) & 0x7f800000) != 0;
        rows[i / geometry.unit] |= static_cast<uint32_t>(set)
                                   << (k * geometry.unit + i % geometry.unit);
      }
    }
  }

  // fill(first, rows): the mask of 32 rows from `first` on; zero before.
  template <class Fill>
  void Apply(const ChunkPlace& place, const Fill& fill) const {
    const int64_t pixel_bytes = geometry.row * item;
    const int64_t compact = geometry.unit * item, tile_row = kLanes * item;
    const uint8_t* const from = dy + place.offset * item;
    uint8_t* const to = dx + place.offset * item;
    for (int first = 0; first < place.rows; first += plane::kPixels) {
      uint32_t rows[plane::kPixels] = {};
      fill(first, rows);
      if (geometry.runs == 1 &&
          place.valid - first * kLanes >= plane::kTileValues) {
        apply(rows, static_cast<int>(item), from + first * pixel_bytes,
              to + first * pixel_bytes, pixel_bytes);
        continue;
      }
      alignas(64) uint8_t tile[plane::kTileValues * 4] = {};
      for (int k = 0; k < geometry.runs; ++k) {
        int64_t begin;
        const int64_t count = RunValues(place, k, first, &begin);
        CopyRows(from + begin / geometry.unit * pixel_bytes, pixel_bytes,
                 tile + k * compact, tile_row, count * item, compact);
      }
      apply(rows, static_cast<int>(item), tile, tile, tile_row);
      for (int k = 0; k < geometry.runs; ++k) {
        int64_t begin;
        const int64_t count = RunValues(place, k, first, &begin);
        CopyRows(tile + k * compact, tile_row,
                 to + begin / geometry.unit * pixel_bytes, pixel_bytes,
                 count * item, compact);
      }
    }
  }
};

}  // namespace

Status RansDecode(const StreamIn& stream, void* out,
                  const ParallelFor& parallel, Isa isa) {
  StreamView v;
  Status s = Open(stream.data, stream.bytes, stream.n, isa, &v);
  if (!s.ok()) return s;
  s = CheckDType(CodecId::kRans, v.quantizer.dtype, stream.dtype);
  if (!s.ok()) return s;
  if (out == nullptr && stream.n > 0) {
    return Status::Invalid("rans: out must not be null when n > 0");
  }
  const int64_t item = static_cast<int64_t>(ItemBytes(stream.dtype));
  return ReadChunks(&v, parallel, isa,
                    ValueReader{v.geometry, static_cast<uint8_t*>(out), item});
}

Status RansMaskGradient(const StreamIn& stream, const void* dy, void* dx,
                        const ParallelFor& parallel, Isa isa) {
  StreamView v;
  Status s = Open(stream.data, stream.bytes, stream.n, isa, &v);
  if (!s.ok()) return s;
  s = CheckHasMask(CodecId::kRans, v.quantizer.coding);
  if (!s.ok()) return s;
  if ((dy == nullptr || dx == nullptr) && stream.n > 0) {
    return Status::Invalid("rans: dy and dx must not be null when n > 0");
  }
  const DType stored = v.quantizer.dtype;
  const Coding coding = v.quantizer.coding;
  const MaskReader reader{v.geometry,
                          static_cast<const uint8_t*>(dy),
                          static_cast<uint8_t*>(dx),
                          stored,
                          static_cast<int64_t>(ItemBytes(stream.dtype)),
                          plane::SelectKernels(isa, stream.dtype, coding).apply,
                          rans::SelectKernels(isa, stored, coding).mask};
  return ReadChunks(&v, parallel, isa, reader);
}

}  // namespace comptrain
