// rans, encoder: samples chunks for the frequencies, encodes all of them in
// parallel into slices of scratch, and lays the stream out.
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/codec/stream/check_params.h"
#include "cc/codec/rans/rans.h"
#include "cc/codec/rans/chunk.h"
#include "cc/codec/rans/code.h"
#include "cc/codec/rans/layout.h"
#include "cc/codec/rans/model.h"

namespace comptrain {

using rans::ChunkHead;
using rans::ChunkKind;
using rans::ChunkPlace;
using rans::ChunkWork;
using rans::Geometry;
using rans::kContexts;
using rans::kLanes;
using rans::kTokens;

namespace {

constexpr int64_t kCyclesPerValue = 5;
// Bits per value that scratch_bytes allows for.
constexpr int kScratchBits = 6;

constexpr uint64_t kNotInScratch = UINT64_MAX;

struct ChunkSize {
  uint32_t words = 0;           // of 32 bits
  uint64_t at = kNotInScratch;  // the word of scratch it begins at
  int64_t nonzero = 0;
};

// The values of a chunk: in the tensor or, where it ends inside the chunk, a
// copy padded with zeros.
struct Source {
  const uint8_t* x;
  int64_t pixel_bytes;
  std::vector<uint8_t> padded;
};

// A prepared chunk on its way, and the memory for it.
struct Slot {
  int64_t chunk = 0;
  ChunkPlace place;
  ChunkHead head;
  int64_t nonzero = 0;
  Source source;
  std::unique_ptr<ChunkWork> work{new ChunkWork};
};

class RansEncoder : public StreamEncoder {
 public:
  RansEncoder(const EncodeParams& params, Isa isa);

  size_t scratch_bytes() const override;

 private:
  uint64_t EncodeAll(uint8_t* scratch, size_t scratch_bytes,
                     const ParallelFor& parallel) override;
  size_t payload_offset() const override {
    return rans::Sections(geometry_, counted_).payload;
  }
  void WriteAll(uint8_t* stream, const ParallelFor& parallel) override;

  // Of its first rows, at most so many.
  ChunkKind Prepare(int64_t chunk, int most_rows, Slot* slot) const;
  void ChooseShiftAndPrior();
  void ChooseFrequencies(const ParallelFor& parallel);
  template <class Wanted, class Put>
  void EncodeChunks(int64_t begin, int64_t end, const Wanted& wanted,
                    const Put& put) const;
  template <class Put>
  void Store(const Slot& slot, bool coded, int n_words, const Put& put) const;
  void FillHeader(uint8_t* stream) const;

  Geometry geometry_;
  ScaleTable scales_;
  LanePlaces lanes_;
  Quantizer quantizer_;
  rans::ChunkKernels kernels_;
  rans::Model model_;
  uint16_t freq_[kContexts * kTokens];
  rans::Prior prior_ = rans::kOneSided;
  bool counted_ = false;
  uint8_t* scratch_ = nullptr;
  uint64_t scratch_words_ = 0;
  std::vector<ChunkSize> sizes_;
};

RansEncoder::RansEncoder(const EncodeParams& params, Isa isa)
    : StreamEncoder(CodecId::kRans, params) {
  checked_ = CheckParams(CodecId::kRans, params, isa);
  if (!checked_.ok()) return;
  geometry_ = Geometry(params.n, params.channels);
  checked_ = CheckSize(CodecId::kRans, params.n, geometry_.chunks,
                       rans::Sections(geometry_, true).payload);
  const Quantizer stream = QuantizerOf(params);
  lanes_ = rans::LanesOf(geometry_, params.scales, params.channels);
  scales_ = rans::ScalesOf(geometry_, lanes_, stream, params.scales);
  quantizer_ = scales_.Of(stream, lanes_);
  kernels_ = rans::SelectKernels(isa, params.dtype, quantizer_.coding);
  model_.stride = geometry_.Stride(params.width, params.channels);
}

ChunkKind RansEncoder::Prepare(int64_t chunk, int most_rows, Slot* slot) const {
  const ChunkPlace place = geometry_.Place(chunk);
  slot->chunk = chunk;
  slot->place = place;
  Source* const source = &slot->source;
  const int64_t item = static_cast<int64_t>(ItemBytes(params_.dtype));
  source->x = x_ + place.offset * item;
  source->pixel_bytes = geometry_.row * item;
  if (!place.whole()) {
    const int64_t compact = geometry_.unit * item;
    source->padded.assign(place.rows * kLanes * item, 0);
    CopyRows(source->x, source->pixel_bytes, source->padded.data(), compact,
             place.valid * item, compact);
    source->x = source->padded.data();
    source->pixel_bytes = compact;
  }
  return kernels_.prepare(
      CountedFrom(quantizer_, place.first, lanes_.First(chunk, place.offset)),
      model_,
      {source->x, geometry_.PitchOf(place.rows, source->pixel_bytes, item),
       std::min(place.rows, most_rows)},
      slot->work.get(), &slot->head, &slot->nonzero);
}

// From the first rows of a few chunks: tokens are fine for means below 16.
void RansEncoder::ChooseShiftAndPrior() {
  const int64_t step = geometry_.ShiftStep();
  Slot slot;
  uint64_t sum = 0, count = 0;
  int64_t lanes = 0, negative = 0;
  model_.shift = 0;
  for (int64_t chunk = step / 2; chunk < geometry_.chunks; chunk += step) {
    if (Prepare(chunk, rans::kShiftRows, &slot) != ChunkKind::kCoded) continue;
    const int rows = std::min(slot.place.rows, rans::kShiftRows);
    lanes += kLanes;
    negative += __builtin_popcount(slot.head.negative);
    const uint16_t* u = slot.work->u + rans::kPadRows * kLanes;
    for (int i = 0; i < rows * kLanes; ++i) sum += u[i];
    count += static_cast<uint64_t>(rows) * kLanes;
  }
  model_.shift = rans::ShiftFor(sum, count);
  prior_ = 2 * negative > lanes ? rans::kTwoSided : rans::kOneSided;
}

void RansEncoder::ChooseFrequencies(const ParallelFor& parallel) {
  counted_ = params_.n >= params_.counted_from;
  if (!counted_) {
    rans::SetFrequencies(rans::kBuiltInFrequencies[prior_], &model_);
    return;
  }
  const int64_t step = geometry_.CountStep();
  std::vector<uint64_t> totals(kContexts * kTokens, 0);
  std::mutex mutex;
  parallel(
      CeilDiv(geometry_.chunks, step),
      kCyclesPerValue * kLanes << geometry_.log2_pixels,
      [&](int64_t begin, int64_t end) {
        Slot slot;
        // Two counters a token: equal tokens in a row do not wait for each
        // other.
        std::vector<uint32_t> counts(2 * kContexts * kTokens, 0);
        for (int64_t i = begin; i < end; ++i) {
          if (Prepare(i * step, rans::kMaxPixels, &slot) != ChunkKind::kCoded) {
            continue;
          }
          const uint16_t* index = slot.work->index + rans::kPadRows * kLanes;
          for (int k = 0; k < slot.place.rows * kLanes; k += 2) {
            ++counts[index[k]];
            ++counts[index[k + 1] + kContexts * kTokens];
          }
        }
        const std::lock_guard<std::mutex> lock(mutex);
        for (int k = 0; k < kContexts * kTokens; ++k) {
          totals[k] += counts[k] + uint64_t{counts[k + kContexts * kTokens]};
        }
      });
  rans::Normalize(totals.data(), prior_, freq_);
  rans::SetFrequencies(freq_, &model_);
}

// Encodes the chunks of [begin, end) that wanted(chunk) is true of.
// put(chunk, words, nonzero): where its words go, or null.
template <class Wanted, class Put>
void RansEncoder::EncodeChunks(int64_t begin, int64_t end, const Wanted& wanted,
                               const Put& put) const {
  Slot slots[rans::kMaxJobs];
  rans::EncodeJob jobs[rans::kMaxJobs];
  int waiting = 0;
  const auto flush = [&] {
    if (waiting == 0) return;
    kernels_.encode(model_, slots[0].place.rows, jobs, waiting);
    for (int i = 0; i < waiting; ++i) {
      Store(slots[i], true, jobs[i].n_words, put);
    }
    waiting = 0;
  };
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    if (!wanted(chunk)) continue;
    const int rows = geometry_.Place(chunk).rows;
    if (waiting > 0 && slots[0].place.rows != rows) flush();
    Slot& slot = slots[waiting];
    switch (Prepare(chunk, rans::kMaxPixels, &slot)) {
      case ChunkKind::kZero:
        put(chunk, 0, slot.nonzero);
        break;
      case ChunkKind::kRaw:
        Store(slot, false, 0, put);
        break;
      case ChunkKind::kCoded:
        jobs[waiting++] = {slot.work.get(), &slot.head, 0};
        if (waiting == kernels_.at_once) flush();
    }
  }
  flush();
}

// A coded chunk has n_words of 16 bits; it becomes raw where it is not smaller.
template <class Put>
void RansEncoder::Store(const Slot& slot, bool coded, int n_words,
                        const Put& put) const {
  const uint32_t raw_words = RawWords(slot.place.valid, params_.dtype);
  const uint32_t words =
      static_cast<uint32_t>(sizeof slot.head / 4 + (n_words + 1) / 2);
  if (coded && words < raw_words) {
    uint8_t* to = put(slot.chunk, words, slot.nonzero);
    if (to == nullptr) return;
    std::memcpy(to, &slot.head, sizeof slot.head);
    to += sizeof slot.head;
    if (n_words % 2 != 0) {
      std::memset(to, 0, 2);
      to += 2;
    }
    std::memcpy(to, slot.work->words, 2 * static_cast<size_t>(n_words));
    return;
  }
  uint8_t* const to = put(slot.chunk, raw_words, slot.nonzero);
  if (to == nullptr) return;
  const int64_t item = static_cast<int64_t>(ItemBytes(params_.dtype));
  const int64_t compact = geometry_.unit * item;
  std::memset(to + 4 * size_t{raw_words} - 4, 0, 4);
  CopyRows(slot.source.x, slot.source.pixel_bytes, to, compact,
           slot.place.valid * item, compact);
}

uint64_t RansEncoder::EncodeAll(uint8_t* scratch, size_t scratch_bytes,
                                const ParallelFor& parallel) {
  const int64_t chunks = geometry_.chunks;
  sizes_.assign(chunks, ChunkSize());
  scratch_ = scratch;
  scratch_words_ = scratch == nullptr ? 0 : scratch_bytes / 4;
  ChooseShiftAndPrior();
  ChooseFrequencies(parallel);
  parallel(chunks, kCyclesPerValue * kLanes << geometry_.log2_pixels,
           [this, chunks](int64_t begin, int64_t end) {
             // A share of scratch, which they fill one after the other.
             uint64_t at = scratch_words_ / chunks * begin;
             const uint64_t limit = scratch_words_ / chunks * end;
             EncodeChunks(
                 begin, end, [](int64_t) { return true; },
                 [&](int64_t chunk, uint32_t words, int64_t nonzero) {
                   ChunkSize& size = sizes_[chunk];
                   size.words = words;
                   size.nonzero = nonzero;
                   if (words > limit - at)
                     return static_cast<uint8_t*>(nullptr);
                   size.at = at;
                   at += words;
                   return scratch_ + 4 * size.at;
                 });
           });
  uint64_t words = 0;
  for (const ChunkSize& s : sizes_) {
    words += s.words;
    nonzero_ += s.nonzero;
  }
  return words;
}

// Header, directory and table, with their padding.
void RansEncoder::FillHeader(uint8_t* stream) const {
  const rans::Sections at(geometry_, counted_);
  std::memset(stream, 0, at.payload);
  StreamHeader h =
      MakeHeader({CodecId::kRans, params_.dtype, params_.n, params_.channels},
                 geometry_.log2_pixels, geometry_.chunks, at, total_bytes());
  SetQuantizer(quantizer_, geometry_.flat, params_.scales, &h);
  std::memcpy(stream, &h, sizeof h);
  rans::TableHead table = {};
  table.stride = static_cast<uint32_t>(model_.stride);
  table.shift = static_cast<uint8_t>(model_.shift);
  table.table = counted_ ? rans::kCountedTable : static_cast<uint8_t>(prior_);
  std::memcpy(stream + at.table, &table, sizeof table);
  if (counted_)
    std::memcpy(stream + at.table + sizeof table, freq_, sizeof freq_);
  PutStarts(
      sizes_, [](const ChunkSize& s) { return s.words; },
      stream + at.directory);
}

void RansEncoder::WriteAll(uint8_t* stream, const ParallelFor& parallel) {
  FillHeader(stream);
  const rans::Sections at(geometry_, counted_);
  parallel(geometry_.chunks,
           kCyclesPerValue * kLanes / 8 << geometry_.log2_pixels,
           [&](int64_t begin, int64_t end) {
             const auto place = [&](int64_t chunk) {
               const uint64_t start =
                   ElementOf<uint32_t>(stream + at.directory, chunk);
               return stream + at.payload + 4 * start;
             };
             bool all = true;
             for (int64_t c = begin; c < end; ++c) {
               const ChunkSize& size = sizes_[c];
               all &= size.at != kNotInScratch;
               if (size.words == 0 || size.at == kNotInScratch) continue;
               std::memcpy(place(c), scratch_ + 4 * size.at,
                           4 * static_cast<size_t>(size.words));
             }
             if (all) return;
             EncodeChunks(
                 begin, end,
                 [&](int64_t c) { return sizes_[c].at == kNotInScratch; },
                 [&](int64_t c, uint32_t, int64_t) { return place(c); });
           });
}

size_t RansEncoder::scratch_bytes() const {
  if (geometry_.chunks == 0) return 0;
  const uint64_t values = uint64_t{kLanes} << geometry_.log2_pixels;
  const uint64_t words =
      std::min<uint64_t>(sizeof(ChunkHead) / 4 + values * kScratchBits / 32,
                         RawWords(static_cast<int>(values), params_.dtype));
  return geometry_.chunks * 4 * words + 4;
}

}  // namespace

std::unique_ptr<StreamEncoder> MakeRansEncoder(const EncodeParams& params,
                                               Isa isa) {
  return std::make_unique<RansEncoder>(params, isa);
}

size_t RansMaxBytes(int64_t n, int64_t channels, DType dtype) {
  if (n <= 0 || channels <= 0) {
    return sizeof(StreamHeader) + sizeof(rans::TableHead);
  }
  const Geometry g(n, channels);
  // Every chunk raw; only the flat view's last one can end inside a word.
  return rans::Sections(g, true).payload +
         4 * static_cast<size_t>(CeilDiv(n * ItemBytes(dtype), 4)) +
         ScaleBytes(kExponents | kCentres, static_cast<uint64_t>(channels));
}

}  // namespace comptrain
