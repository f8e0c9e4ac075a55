// zvc, encoder: counts the non-zeros of every chunk, then writes each chunk
// to where the counts say.
#include <algorithm>
#include <cstring>
#include <exception>
#include <vector>

#include "cc/codec/stream/check_params.h"
#include "cc/codec/zvc/zvc.h"
#include "cc/codec/zvc/layout.h"
#include "cc/codec/zvc/writer.h"

namespace comptrain {

using zvc::kChunkValues;
using zvc::kMaskWords;
using zvc::kRangeChunks;
using zvc::Layout;

namespace {

constexpr int64_t kCountCyclesPerRange = 16 * 1000;
constexpr int64_t kWriteCyclesPerRange = 16 * 2500;
// Streams from here on do not stay in a core's caches until they are read.
constexpr size_t kPastCachesBytes = size_t{4} << 20;

struct Range {
  uint64_t words = 0;
  int64_t nonzero = 0;
};

}  // namespace

struct ZvcEncoder::Impl {
  EncodeParams params;
  Layout layout;
  const zvc::ChunkKernels* kernels = nullptr;
  Status checked;

  const uint8_t* x = nullptr;
  std::vector<uint16_t> words;  // of each chunk
  std::vector<Range> ranges;
  size_t total_bytes = 0;
  int64_t nonzero = 0;
  bool encoded = false;

  int width() const { return layout.item == 4; }
  const uint8_t* WholeChunk(int64_t chunk, uint8_t* padded) const;
  void CountRange(int64_t range);
  void WriteRange(int64_t range, uint8_t* to) const;
  void FillHeader(uint8_t* stream) const;
};

ZvcEncoder::ZvcEncoder(const EncodeParams& params, Isa isa) : impl_(new Impl) {
  impl_->params = params;
  impl_->checked =
      CheckTensor(CodecId::kZvc, params.n, params.channels, params.dtype, isa);
  if (!impl_->checked.ok()) return;
  impl_->layout = Layout(params.n, params.dtype);
  impl_->checked = CheckSize(CodecId::kZvc, params.n, impl_->layout.chunks,
                             impl_->layout.payload);
  impl_->kernels = zvc::SelectKernels(isa);
}

ZvcEncoder::~ZvcEncoder() = default;

// The chunk in the tensor or, where the tensor ends in it, a copy with zeros
// behind.
const uint8_t* ZvcEncoder::Impl::WholeChunk(int64_t chunk,
                                            uint8_t* padded) const {
  const uint8_t* from = x + chunk * kChunkValues * layout.item;
  const int valid = layout.Valid(chunk);
  if (valid == kChunkValues) return from;
  std::memset(padded, 0, kChunkValues * layout.item);
  std::memcpy(padded, from, valid * layout.item);
  return padded;
}

void ZvcEncoder::Impl::CountRange(int64_t range) {
  alignas(64) uint8_t padded[kChunkValues * 4];
  const int64_t first = range * kRangeChunks;
  const int64_t last = std::min(layout.chunks, first + kRangeChunks);
  Range r;
  for (int64_t chunk = first; chunk < last; ++chunk) {
    const int count = kernels->count[width()](WholeChunk(chunk, padded));
    const uint32_t w = layout.Words(layout.Valid(chunk), count);
    words[chunk] = static_cast<uint16_t>(w);
    r.words += w;
    r.nonzero += count;
  }
  ranges[range] = r;
}

Status ZvcEncoder::Encode(const void* x, const ParallelFor& parallel) {
  Impl& m = *impl_;
  m.encoded = false;
  if (!m.checked.ok()) return m.checked;
  if (x == nullptr && m.params.n > 0) {
    return Status::Invalid("zvc: x must not be null when n > 0");
  }
  try {
    m.words.resize(m.layout.chunks);
    m.ranges.resize(m.layout.ranges);
    m.x = static_cast<const uint8_t*>(x);
    parallel(m.layout.ranges, kCountCyclesPerRange,
             [&m](int64_t begin, int64_t end) {
               for (int64_t r = begin; r < end; ++r) m.CountRange(r);
             });
  } catch (const std::exception& e) {
    return OutOfMemory(CodecId::kZvc, "encoding", e);
  }
  uint64_t words = 0;
  m.nonzero = 0;
  for (const Range& r : m.ranges) {
    words += r.words;
    m.nonzero += r.nonzero;
  }
  const Status s = CheckWords(CodecId::kZvc, words);
  if (!s.ok()) return s;
  m.total_bytes = m.layout.payload + 4 * words;
  m.encoded = true;
  return {};
}

size_t ZvcEncoder::total_bytes() const { return impl_->total_bytes; }

int64_t ZvcEncoder::nonzero() const { return impl_->nonzero; }

// Header, directory and table, with their padding.
void ZvcEncoder::Impl::FillHeader(uint8_t* stream) const {
  std::memset(stream, 0, layout.payload);
  const StreamHeader h =
      MakeHeader(CodecId::kZvc, params.dtype, params.n, params.channels,
                 zvc::kLog2ChunkValues, layout.chunks, layout, total_bytes);
  std::memcpy(stream, &h, sizeof h);
  if (layout.chunks == 0) return;
  std::memcpy(stream + layout.directory, words.data(), 2 * words.size());
  uint32_t start = 0;
  for (size_t r = 0; r < ranges.size(); ++r) {
    std::memcpy(stream + layout.table + 4 * r, &start, sizeof start);
    start += static_cast<uint32_t>(ranges[r].words);
  }
}

void ZvcEncoder::Impl::WriteRange(int64_t range, uint8_t* to) const {
  alignas(64) uint8_t padded[kChunkValues * 4];
  alignas(64) uint32_t mask[kMaskWords];
  const int64_t first = range * kRangeChunks;
  const int64_t last = std::min(layout.chunks, first + kRangeChunks);
  zvc::LineWriter out(to, total_bytes >= kPastCachesBytes);
  for (int64_t chunk = first; chunk < last; ++chunk) {
    const uint32_t w = words[chunk];
    if (w == 0) continue;
    const int valid = layout.Valid(chunk);
    const uint8_t* from = WholeChunk(chunk, padded);
    size_t bytes = valid * layout.item;
    if (w == layout.RawWords(valid)) {
      out.Copy(from, bytes);
    } else {
      const size_t mask_bytes = 4 * CeilDiv(valid, 32);
      kernels->pack[width()](from, mask, out.at() + mask_bytes);
      std::memcpy(out.at(), mask, mask_bytes);
      bytes = mask_bytes + kernels->ones(mask) * layout.item;
      out.Advance(bytes);
    }
    std::memset(out.at(), 0, 4 * w - bytes);  // after an odd 16-bit value
    out.Advance(4 * w - bytes);
  }
  out.Finish();
}

Status ZvcEncoder::Write(uint8_t* stream, const ParallelFor& parallel) {
  Impl& m = *impl_;
  if (!m.encoded) {
    return Status::Invalid("zvc: Write needs an Encode that succeeded");
  }
  if (stream == nullptr) {
    return Status::Invalid("zvc: stream must not be null");
  }
  try {
    m.FillHeader(stream);
    parallel(m.layout.ranges, kWriteCyclesPerRange,
             [&](int64_t begin, int64_t end) {
               for (int64_t r = begin; r < end; ++r) {
                 uint32_t start;
                 std::memcpy(&start, stream + m.layout.table + 4 * r,
                             sizeof start);
                 m.WriteRange(r, stream + m.layout.payload +
                                     4 * static_cast<uint64_t>(start));
               }
             });
  } catch (const std::exception& e) {
    return OutOfMemory(CodecId::kZvc, "encoding", e);
  }
  return {};
}

size_t ZvcMaxBytes(int64_t n, DType dtype) {
  const Layout layout(std::max<int64_t>(n, 0), dtype);
  // Every chunk raw; only the last one can end inside a word.
  return layout.payload +
         4 * static_cast<size_t>(CeilDiv(layout.n * layout.item, 4));
}

}  // namespace comptrain
