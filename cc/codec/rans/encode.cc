// rans, encoder: samples chunks for the frequencies, encodes all of them in
// parallel into slices of scratch, and lays the stream out.
#include <algorithm>
#include <cstring>
#include <exception>
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
// Bits per value that RansScratchBytes allows for.
constexpr int kScratchBits = 6;

constexpr uint64_t kNotInScratch = UINT64_MAX;

struct ChunkSize {
  uint32_t words = 0;  // of 32 bits
  uint64_t at = kNotInScratch;  // the word of scratch it begins at
  rans::ChunkSums sums;
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
  rans::ChunkSums sums;
  Source source;
  std::unique_ptr<ChunkWork> work{new ChunkWork};
};

}  // namespace

struct RansEncoder::Impl {
  EncodeParams params;
  Geometry geometry;
  Quantizer quantizer;
  rans::ChunkKernels kernels;
  rans::Model model;
  uint16_t freq[kContexts * kTokens];
  rans::Prior prior = rans::kOneSided;
  bool counted = false;
  Status checked;

  const uint8_t* x = nullptr;
  uint8_t* scratch = nullptr;
  uint64_t scratch_words = 0;
  std::vector<ChunkSize> sizes;
  size_t total_bytes = 0;
  EncodeStats stats;
  bool encoded = false;

  // Of its first `rows` rows.
  ChunkKind Prepare(const ChunkPlace& place, int rows, Source* source,
                    ChunkWork* work, ChunkHead* head,
                    rans::ChunkSums* sums) const;
  void ChooseShiftAndPrior();
  void ChooseFrequencies(const ParallelFor& parallel);
  template <class Wanted, class Put>
  void EncodeChunks(int64_t begin, int64_t end, const Wanted& wanted,
                    const Put& put) const;
  template <class Put>
  void Store(const Slot& slot, bool coded, int n_words, const Put& put) const;
  void FillHeader(uint8_t* stream) const;
};

RansEncoder::RansEncoder(const EncodeParams& params, Isa isa) : impl_(new Impl) {
  Impl& m = *impl_;
  m.params = params;
  m.checked = CheckParams(CodecId::kRans, params, isa);
  if (!m.checked.ok()) return;
  m.geometry = Geometry(params.n, params.channels);
  m.checked = CheckSize(CodecId::kRans, params.n, m.geometry.chunks,
                        rans::Sections(m.geometry, true).payload);
  m.quantizer = MakeQuantizer(params.dtype, CodingOf(params),
                                     params.eb);
  m.kernels = rans::SelectKernels(isa, params.dtype, m.quantizer.coding);
  m.model.stride = m.geometry.Stride(params.width, params.channels);
}

RansEncoder::~RansEncoder() = default;

ChunkKind RansEncoder::Impl::Prepare(const ChunkPlace& place, int rows,
                                     Source* source, ChunkWork* work,
                                     ChunkHead* head,
                                     rans::ChunkSums* sums) const {
  const int64_t item = static_cast<int64_t>(ItemBytes(params.dtype));
  source->x = x + place.offset * item;
  source->pixel_bytes = geometry.row * item;
  if (!place.whole()) {
    const int64_t compact = geometry.unit * item;
    source->padded.assign(place.rows * kLanes * item, 0);
    CopyRows(source->x, source->pixel_bytes, source->padded.data(),
                   compact, place.valid * item, compact);
    source->x = source->padded.data();
    source->pixel_bytes = compact;
  }
  return kernels.prepare(
      CountedFrom(quantizer, place.first), model, source->x,
      geometry.PitchOf(place.rows, source->pixel_bytes, item), rows, work, head,
      sums);
}

// From the first rows of a few chunks: tokens are fine for means below 16.
void RansEncoder::Impl::ChooseShiftAndPrior() {
  const int64_t step = geometry.ShiftStep();
  std::unique_ptr<ChunkWork> work(new ChunkWork);
  Source source;
  uint64_t sum = 0, count = 0;
  int64_t lanes = 0, negative = 0;
  model.shift = 0;
  for (int64_t chunk = step / 2; chunk < geometry.chunks; chunk += step) {
    const ChunkPlace place = geometry.Place(chunk);
    ChunkHead head;
    rans::ChunkSums sums;
    const int rows = std::min(place.rows, rans::kShiftRows);
    if (Prepare(place, rows, &source, work.get(), &head, &sums) !=
        ChunkKind::kCoded) {
      continue;
    }
    lanes += kLanes;
    negative += __builtin_popcount(head.negative);
    const uint16_t* u = work->u + rans::kPadRows * kLanes;
    for (int i = 0; i < rows * kLanes; ++i) sum += u[i];
    count += static_cast<uint64_t>(rows) * kLanes;
  }
  model.shift = rans::ShiftFor(sum, count);
  prior = 2 * negative > lanes ? rans::kTwoSided : rans::kOneSided;
}

void RansEncoder::Impl::ChooseFrequencies(const ParallelFor& parallel) {
  counted = params.n >= params.counted_from;
  if (!counted) {
    rans::SetFrequencies(rans::kBuiltInFrequencies[prior], &model);
    return;
  }
  const int64_t step = geometry.CountStep();
  std::vector<uint64_t> totals(kContexts * kTokens, 0);
  std::mutex mutex;
  parallel(CeilDiv(geometry.chunks, step),
           kCyclesPerValue * kLanes << geometry.log2_pixels,
           [&](int64_t begin, int64_t end) {
    std::unique_ptr<ChunkWork> work(new ChunkWork);
    Source source;
    // Two counters a token: equal tokens in a row do not wait for each other.
    std::vector<uint32_t> counts(2 * kContexts * kTokens, 0);
    for (int64_t i = begin; i < end; ++i) {
      const ChunkPlace place = geometry.Place(i * step);
      ChunkHead head;
      rans::ChunkSums sums;
      if (Prepare(place, place.rows, &source, work.get(), &head, &sums) !=
          ChunkKind::kCoded) {
        continue;
      }
      const uint16_t* index = work->index + rans::kPadRows * kLanes;
      for (int k = 0; k < place.rows * kLanes; k += 2) {
        ++counts[index[k]];
        ++counts[index[k + 1] + kContexts * kTokens];
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for (int k = 0; k < kContexts * kTokens; ++k) {
      totals[k] += counts[k] + uint64_t{counts[k + kContexts * kTokens]};
    }
  });
  rans::Normalize(totals.data(), prior, freq);
  rans::SetFrequencies(freq, &model);
}

// Encodes the chunks of [begin, end) that wanted(chunk) is true of.
// put(chunk, words, sums): where its words go, or null.
template <class Wanted, class Put>
void RansEncoder::Impl::EncodeChunks(int64_t begin, int64_t end,
                                     const Wanted& wanted,
                                     const Put& put) const {
  Slot slots[rans::kMaxJobs];
  rans::EncodeJob jobs[rans::kMaxJobs];
  int waiting = 0;
  const auto flush = [&] {
    if (waiting == 0) return;
    kernels.encode(model, slots[0].place.rows, jobs, waiting);
    for (int i = 0; i < waiting; ++i) {
      Store(slots[i], true, jobs[i].n_words, put);
    }
    waiting = 0;
  };
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    if (!wanted(chunk)) continue;
    const ChunkPlace place = geometry.Place(chunk);
    if (waiting > 0 && slots[0].place.rows != place.rows) flush();
    Slot& slot = slots[waiting];
    slot.chunk = chunk;
    slot.place = place;
    switch (Prepare(place, place.rows, &slot.source, slot.work.get(),
                    &slot.head, &slot.sums)) {
      case ChunkKind::kZero:
        put(chunk, 0, slot.sums);
        break;
      case ChunkKind::kRaw:
        Store(slot, false, 0, put);
        break;
      case ChunkKind::kCoded:
        jobs[waiting++] = {slot.work.get(), &slot.head, 0};
        if (waiting == kernels.at_once) flush();
    }
  }
  flush();
}

// A coded chunk has n_words of 16 bits; it becomes raw where it is not smaller.
template <class Put>
void RansEncoder::Impl::Store(const Slot& slot, bool coded, int n_words,
                              const Put& put) const {
  const uint32_t raw_words = RawWords(slot.place.valid, params.dtype);
  const uint32_t words =
      static_cast<uint32_t>(sizeof slot.head / 4 + (n_words + 1) / 2);
  if (coded && words < raw_words) {
    uint8_t* to = put(slot.chunk, words, slot.sums);
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
  uint8_t* const to = put(slot.chunk, raw_words, slot.sums);
  if (to == nullptr) return;
  const int64_t item = static_cast<int64_t>(ItemBytes(params.dtype));
  const int64_t compact = geometry.unit * item;
  std::memset(to + 4 * size_t{raw_words} - 4, 0, 4);
  CopyRows(slot.source.x, slot.source.pixel_bytes, to, compact,
                 slot.place.valid * item, compact);
}

Status RansEncoder::Encode(const void* x, uint8_t* scratch,
                           size_t scratch_bytes, const ParallelFor& parallel) {
  Impl& m = *impl_;
  m.encoded = false;
  if (!m.checked.ok()) return m.checked;
  if (x == nullptr && m.params.n > 0) {
    return Status::Invalid("rans: x must not be null when n > 0");
  }
  const int64_t chunks = m.geometry.chunks;
  try {
    m.sizes.assign(chunks, ChunkSize());
    m.x = static_cast<const uint8_t*>(x);
    m.scratch = scratch;
    m.scratch_words = scratch == nullptr ? 0 : scratch_bytes / 4;
    m.ChooseShiftAndPrior();
    m.ChooseFrequencies(parallel);
    parallel(chunks, kCyclesPerValue * kLanes << m.geometry.log2_pixels,
             [&m, chunks](int64_t begin, int64_t end) {
      // A share of scratch, which they fill one after the other.
      uint64_t at = m.scratch_words / chunks * begin;
      const uint64_t limit = m.scratch_words / chunks * end;
      m.EncodeChunks(
          begin, end, [](int64_t) { return true; },
          [&](int64_t chunk, uint32_t words, const rans::ChunkSums& sums) {
        ChunkSize& size = m.sizes[chunk];
        size.words = words;
        size.sums = sums;
        if (words > limit - at) return static_cast<uint8_t*>(nullptr);
        size.at = at;
        at += words;
        return m.scratch + 4 * size.at;
      });
    });
  } catch (const std::exception& e) {
    return OutOfMemory(CodecId::kRans, "encoding", e);
  }
  uint64_t words = 0;
  m.stats = EncodeStats();
  for (const ChunkSize& s : m.sizes) {
    words += s.words;
    m.stats.nonzero += s.sums.nonzero;
    m.stats.sum += s.sums.sum;
    m.stats.sum_sq += s.sums.sum_sq;
  }
  const Status s = CheckWords(CodecId::kRans, words);
  if (!s.ok()) return s;
  m.total_bytes = rans::Sections(m.geometry, m.counted).payload + 4 * words;
  m.encoded = true;
  return {};
}

size_t RansEncoder::total_bytes() const { return impl_->total_bytes; }

const EncodeStats& RansEncoder::stats() const { return impl_->stats; }

// Header, directory and table, with their padding.
void RansEncoder::Impl::FillHeader(uint8_t* stream) const {
  const rans::Sections at(geometry, counted);
  std::memset(stream, 0, at.payload);
  StreamHeader h =
      MakeHeader(CodecId::kRans, params.dtype, params.n, params.channels,
                 geometry.log2_pixels, geometry.chunks, at, total_bytes);
  h.flags = FlagsOf(quantizer.coding, geometry.flat);
  h.step = quantizer.step;
  h.inv = quantizer.inv;
  std::memcpy(stream, &h, sizeof h);
  rans::TableHead table = {};
  table.stride = static_cast<uint32_t>(model.stride);
  table.shift = static_cast<uint8_t>(model.shift);
  table.table = counted ? rans::kCountedTable
                        : static_cast<uint8_t>(prior);
  std::memcpy(stream + at.table, &table, sizeof table);
  if (counted) std::memcpy(stream + at.table + sizeof table, freq, sizeof freq);
  uint32_t start = 0;
  for (size_t c = 0; c < sizes.size(); ++c) {
    std::memcpy(stream + at.directory + 4 * c, &start, sizeof start);
    start += sizes[c].words;
  }
}

Status RansEncoder::Write(uint8_t* stream, const ParallelFor& parallel) {
  Impl& m = *impl_;
  if (!m.encoded) {
    return Status::Invalid("rans: Write needs an Encode that succeeded");
  }
  if (stream == nullptr) {
    return Status::Invalid("rans: stream must not be null");
  }
  try {
    m.FillHeader(stream);
    const rans::Sections at(m.geometry, m.counted);
    parallel(m.geometry.chunks,
             kCyclesPerValue * kLanes / 8 << m.geometry.log2_pixels,
             [&](int64_t begin, int64_t end) {
      const auto place = [&](int64_t chunk) {
        uint32_t start;
        std::memcpy(&start, stream + at.directory + 4 * chunk, sizeof start);
        return stream + at.payload + 4 * static_cast<uint64_t>(start);
      };
      bool all = true;
      for (int64_t c = begin; c < end; ++c) {
        const ChunkSize& size = m.sizes[c];
        all &= size.at != kNotInScratch;
        if (size.words == 0 || size.at == kNotInScratch) continue;
        std::memcpy(place(c), m.scratch + 4 * size.at,
                    4 * static_cast<size_t>(size.words));
      }
      if (all) return;
      m.EncodeChunks(
          begin, end,
          [&](int64_t c) { return m.sizes[c].at == kNotInScratch; },
          [&](int64_t c, uint32_t, const rans::ChunkSums&) {
        return place(c);
      });
    });
  } catch (const std::exception& e) {
    return OutOfMemory(CodecId::kRans, "encoding", e);
  }
  return {};
}

size_t RansScratchBytes(int64_t n, int64_t channels, DType dtype) {
  if (n <= 0 || channels <= 0) return 0;
  const Geometry g(n, channels);
  const uint64_t values = uint64_t{kLanes}
                          << g.log2_pixels;
  const uint64_t words = std::min<uint64_t>(
      sizeof(ChunkHead) / 4 + values * kScratchBits / 32,
      RawWords(static_cast<int>(values), dtype));
  return g.chunks * 4 * words + 4;
}

size_t RansMaxBytes(int64_t n, int64_t channels, DType dtype) {
  if (n <= 0 || channels <= 0) {
    return sizeof(StreamHeader) + sizeof(rans::TableHead);
  }
  const Geometry g(n, channels);
  // Every chunk raw; only the flat view's last one can end inside a word.
  return rans::Sections(g, true).payload +
         4 * static_cast<size_t>(CeilDiv(n * ItemBytes(dtype), 4));
}

}  // namespace comptrain
