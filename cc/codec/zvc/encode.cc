// zvc, encoder: counts the non-zeros of every chunk, then writes each chunk
// to where the counts say.
#include <algorithm>
#include <cstring>
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

class ZvcEncoder : public StreamEncoder {
 public:
  ZvcEncoder(const EncodeParams& params, Isa isa);

 private:
  uint64_t EncodeAll(uint8_t* scratch, size_t scratch_bytes,
                     const ParallelFor& parallel) override;
  size_t payload_offset() const override { return layout_.payload; }
  void WriteAll(uint8_t* stream, const ParallelFor& parallel) override;

  int width() const { return layout_.item == 4; }
  const uint8_t* WholeChunk(int64_t chunk, uint8_t* padded) const;
  void CountRange(int64_t range);
  void WriteRange(int64_t range, uint8_t* to) const;
  void FillHeader(uint8_t* stream) const;

  Layout layout_;
  const zvc::ChunkKernels* kernels_ = nullptr;
  std::vector<uint16_t> words_;  // of each chunk
  std::vector<Range> ranges_;
};

ZvcEncoder::ZvcEncoder(const EncodeParams& params, Isa isa)
    : StreamEncoder(CodecId::kZvc, params) {
  checked_ =
      CheckTensor(CodecId::kZvc, params.n, params.channels, params.dtype, isa);
  if (!checked_.ok()) return;
  layout_ = Layout(params.n, params.dtype);
  checked_ =
      CheckSize(CodecId::kZvc, params.n, layout_.chunks, layout_.payload);
  kernels_ = &zvc::ChunkKernelsOf(isa);
}

// The chunk in the tensor or, where the tensor ends in it, a copy with zeros
// behind.
const uint8_t* ZvcEncoder::WholeChunk(int64_t chunk, uint8_t* padded) const {
  const uint8_t* from = x_ + chunk * kChunkValues * layout_.item;
  const int valid = layout_.Valid(chunk);
  if (valid == kChunkValues) return from;
  std::memset(padded, 0, kChunkValues * layout_.item);
  std::memcpy(padded, from, valid * layout_.item);
  return padded;
}

void ZvcEncoder::CountRange(int64_t range) {
  alignas(64) uint8_t padded[kChunkValues * 4];
  const int64_t first = range * kRangeChunks;
  const int64_t last = std::min(layout_.chunks, first + kRangeChunks);
  Range r;
  for (int64_t chunk = first; chunk < last; ++chunk) {
    const int count = kernels_->count[width()](WholeChunk(chunk, padded));
    const uint32_t w = layout_.Words(layout_.Valid(chunk), count);
    words_[chunk] = static_cast<uint16_t>(w);
    r.words += w;
    r.nonzero += count;
  }
  ranges_[range] = r;
}

uint64_t ZvcEncoder::EncodeAll(uint8_t* /*scratch*/, size_t /*scratch_bytes*/,
                               const ParallelFor& parallel) {
  words_.resize(layout_.chunks);
  ranges_.resize(layout_.ranges);
  parallel(layout_.ranges, kCountCyclesPerRange,
           [this](int64_t begin, int64_t end) {
             for (int64_t r = begin; r < end; ++r) CountRange(r);
           });
  uint64_t words = 0;
  for (const Range& r : ranges_) {
    words += r.words;
    nonzero_ += r.nonzero;
  }
  return words;
}

// Header, directory and table, with their padding.
void ZvcEncoder::FillHeader(uint8_t* stream) const {
  std::memset(stream, 0, layout_.payload);
  const StreamHeader h =
      MakeHeader({CodecId::kZvc, params_.dtype, params_.n, params_.channels},
                 zvc::kLog2ChunkValues, layout_.chunks, layout_, total_bytes());
  std::memcpy(stream, &h, sizeof h);
  if (layout_.chunks == 0) return;
  std::memcpy(stream + layout_.directory, words_.data(), 2 * words_.size());
  PutStarts(
      ranges_, [](const Range& r) { return r.words; }, stream + layout_.table);
}

void ZvcEncoder::WriteRange(int64_t range, uint8_t* to) const {
  alignas(64) uint8_t padded[kChunkValues * 4];
  alignas(64) uint32_t mask[kMaskWords];
  const int64_t first = range * kRangeChunks;
  const int64_t last = std::min(layout_.chunks, first + kRangeChunks);
  zvc::LineWriter out(to, total_bytes() >= kPastCachesBytes);
  for (int64_t chunk = first; chunk < last; ++chunk) {
    const uint32_t w = words_[chunk];
    if (w == 0) continue;
    const int valid = layout_.Valid(chunk);
    const uint8_t* from = WholeChunk(chunk, padded);
    size_t bytes = valid * layout_.item;
    if (w == layout_.RawWords(valid)) {
      out.Copy(from, bytes);
    } else {
      const size_t mask_bytes = 4 * CeilDiv(valid, 32);
      kernels_->pack[width()](from, mask, out.at() + mask_bytes);
      std::memcpy(out.at(), mask, mask_bytes);
      bytes = mask_bytes + kernels_->ones(mask) * layout_.item;
      out.Advance(bytes);
    }
    std::memset(out.at(), 0, 4 * w - bytes);  // after an odd 16-bit value
    out.Advance(4 * w - bytes);
  }
  out.Finish();
}

void ZvcEncoder::WriteAll(uint8_t* stream, const ParallelFor& parallel) {
  FillHeader(stream);
  parallel(
      layout_.ranges, kWriteCyclesPerRange, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const uint64_t start = ElementOf<uint32_t>(stream + layout_.table, r);
          WriteRange(r, stream + layout_.payload + 4 * start);
        }
      });
}

}  // namespace

std::unique_ptr<StreamEncoder> MakeZvcEncoder(const EncodeParams& params,
                                              Isa isa) {
  EncodeParams p = params;
  p.scales = {};  // without loss no bound is anything's
  return std::make_unique<ZvcEncoder>(p, isa);
}

size_t ZvcMaxBytes(int64_t n, DType dtype) {
  const Layout layout(std::max<int64_t>(n, 0), dtype);
  // Every chunk raw; only the last one can end inside a word.
  return layout.payload +
         4 * static_cast<size_t>(CeilDiv(layout.n * layout.item, 4));
}

}  // namespace comptrain
