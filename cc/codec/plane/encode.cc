// plane, encoder: cuts the tensor into ranges of tiles, encodes them in
// parallel into slices of scratch, and lays the stream out.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cc/codec/stream/check_params.h"
#include "cc/codec/plane/plane.h"
#include "cc/codec/plane/layout.h"
#include "cc/codec/plane/tile.h"

namespace comptrain {

using plane::Geometry;
using plane::kMaxTileWords;
using plane::kRangeTiles;
using plane::kSlackWords;
using plane::kTileValues;

namespace {

constexpr int64_t kEncodeCyclesPerRange = 64 * 1200;
// Rows further apart than this are fetched ahead by hand; hardware does better
// with closer ones.
constexpr int64_t kPrefetchRowBytes = 512;
constexpr uint32_t kTileRoom = kMaxTileWords + kSlackWords;
// Bits per value that scratch_bytes allows for.
constexpr int kScratchBits = 6;

struct Range {
  uint64_t words = 0;
  bool in_scratch = true;
  int64_t nonzero = 0;
};

class PlaneEncoder : public StreamEncoder {
 public:
  PlaneEncoder(const EncodeParams& params, Isa isa);

  size_t scratch_bytes() const override;

 private:
  uint64_t EncodeAll(uint8_t* scratch, size_t scratch_bytes,
                     const ParallelFor& parallel) override;
  size_t payload_offset() const override {
    return plane::Sections(geometry_).payload;
  }
  void WriteAll(uint8_t* stream, const ParallelFor& parallel) override;

  void EncodeRange(int64_t range, uint32_t* out, uint64_t room, Range* result);
  uint16_t EncodeOne(int64_t tile, uint32_t* out, int32_t* nonzero) const;
  void FillHeader(uint8_t* stream) const;

  Geometry geometry_;
  ScaleTable scales_;
  LanePlaces lanes_;
  Quantizer quantizer_;
  plane::TileKernels kernels_;
  uint32_t* scratch_ = nullptr;
  uint64_t slice_words_ = 0;  // a range
  std::vector<uint16_t> entries_;
  std::vector<Range> ranges_;
};

PlaneEncoder::PlaneEncoder(const EncodeParams& params, Isa isa)
    : StreamEncoder(CodecId::kPlane, params) {
  checked_ = CheckParams(CodecId::kPlane, params, isa);
  if (!checked_.ok()) return;
  geometry_ = Geometry(params.n, params.channels);
  checked_ =
      CheckSize(CodecId::kPlane, params.n, geometry_.tiles, payload_offset());
  const Quantizer stream = QuantizerOf(params);
  lanes_ = plane::LanesOf(geometry_, params.scales, params.channels);
  scales_ = plane::ScalesOf(lanes_, stream, params.scales);
  quantizer_ = scales_.Of(stream, lanes_);
  kernels_ = plane::SelectKernels(isa, params.dtype, quantizer_.coding);
}

// A tile that reaches over the tensor's end is encoded from a copy padded with
// zeros; a raw one holds the valid values only.
uint16_t PlaneEncoder::EncodeOne(int64_t tile, uint32_t* out,
                                 int32_t* nonzero) const {
  const plane::TilePlace place = geometry_.Place(tile);
  const int64_t item = static_cast<int64_t>(ItemBytes(params_.dtype));
  const uint8_t* from = x_ + place.offset * item;
  const int64_t tile_row = plane::kLanes * item;
  int64_t row_bytes = geometry_.row * item;
  alignas(64) uint8_t padded[kTileValues * 4];
  if (place.valid < kTileValues) {
    std::memset(padded, 0, sizeof padded);
    CopyRows(from, row_bytes, padded, tile_row, place.valid * item, tile_row);
    from = padded;
    row_bytes = tile_row;
  }
  const uint8_t* next = from;
  if (row_bytes >= kPrefetchRowBytes && tile + 1 < geometry_.tiles) {
    const plane::TilePlace after = geometry_.Place(tile + 1);
    if (after.valid == kTileValues) next = x_ + after.offset * item;
  }
  const uint16_t entry =
      kernels_.encode(CountedFrom(quantizer_, tile * kTileValues,
                                  lanes_.First(tile, place.offset)),
                      from, next, row_bytes, out, nonzero);
  const uint32_t raw_words = RawWords(place.valid, params_.dtype);
  if (!(entry & plane::kRaw) && plane::EntryWords(entry) < raw_words) {
    return entry;
  }
  out[raw_words - 1] = 0;
  uint8_t* to = reinterpret_cast<uint8_t*>(out);
  CopyRows(from, row_bytes, to, tile_row, place.valid * item, tile_row);
  return static_cast<uint16_t>(plane::kRaw | raw_words);
}

// Encodes as many words as `room` holds, and counts the rest.
void PlaneEncoder::EncodeRange(int64_t range, uint32_t* out, uint64_t room,
                               Range* result) {
  alignas(64) uint32_t spare[kTileRoom];
  const int64_t first = range * kRangeTiles;
  const int64_t last = std::min(geometry_.tiles, first + kRangeTiles);
  Range r;
  uint64_t at = 0;
  for (int64_t tile = first; tile < last; ++tile) {
    int32_t nonzero;
    const bool direct = r.in_scratch && room - at >= kTileRoom;
    uint32_t* to = direct ? out + at : spare;
    const uint16_t entry = EncodeOne(tile, to, &nonzero);
    const uint32_t words = plane::EntryWords(entry);
    entries_[tile] = entry;
    r.in_scratch = r.in_scratch && words <= room - at;
    if (!direct && r.in_scratch && words > 0) {
      std::memcpy(out + at, spare, 4 * words);
    }
    at += words;
    r.nonzero += nonzero;
  }
  r.words = at;
  *result = r;
}

uint64_t PlaneEncoder::EncodeAll(uint8_t* scratch, size_t scratch_bytes,
                                 const ParallelFor& parallel) {
  const int64_t n_ranges = geometry_.ranges();
  entries_.resize(geometry_.tiles);
  ranges_.resize(n_ranges);
  // Whole words, aligned as u32 whatever the caller passed.
  const size_t skew = -reinterpret_cast<uintptr_t>(scratch) & 3;
  const bool usable = scratch != nullptr && scratch_bytes > skew;
  scratch_ = usable ? reinterpret_cast<uint32_t*>(scratch + skew) : nullptr;
  slice_words_ =
      usable && n_ranges > 0 ? (scratch_bytes - skew) / 4 / n_ranges : 0;
  parallel(n_ranges, kEncodeCyclesPerRange, [this](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      uint32_t* slice =
          scratch_ == nullptr ? nullptr : scratch_ + r * slice_words_;
      EncodeRange(r, slice, slice_words_, &ranges_[r]);
    }
  });
  uint64_t words = 0;
  for (const Range& r : ranges_) {
    words += r.words;
    nonzero_ += r.nonzero;
  }
  return words;
}

// Header, directory and table, with their padding.
void PlaneEncoder::FillHeader(uint8_t* stream) const {
  const plane::Sections at(geometry_);
  std::memset(stream, 0, at.payload);
  StreamHeader h =
      MakeHeader({CodecId::kPlane, params_.dtype, params_.n, params_.channels},
                 plane::kLog2Pixels, geometry_.tiles, at, total_bytes());
  SetQuantizer(quantizer_, geometry_.flat, params_.scales, &h);
  std::memcpy(stream, &h, sizeof h);
  if (geometry_.tiles == 0) return;
  std::memcpy(stream + at.directory, entries_.data(), 2 * entries_.size());
  PutStarts(ranges_, [](const Range& r) { return r.words; }, stream + at.table);
}

void PlaneEncoder::WriteAll(uint8_t* stream, const ParallelFor& parallel) {
  FillHeader(stream);
  const plane::Sections at(geometry_);
  const uint8_t* starts = stream + at.table;
  uint8_t* payload = stream + at.payload;
  parallel(geometry_.ranges(), kEncodeCyclesPerRange / 8,
           [&](int64_t begin, int64_t end) {
             std::vector<uint32_t> again;
             for (int64_t r = begin; r < end; ++r) {
               const Range range = ranges_[r];
               if (range.words == 0) continue;
               const uint32_t* from = scratch_ + r * slice_words_;
               if (!range.in_scratch) {
                 Range same;
                 again.resize(range.words);
                 EncodeRange(r, again.data(), range.words, &same);
                 from = again.data();
               }
               std::memcpy(
                   payload + 4 * uint64_t{ElementOf<uint32_t>(starts, r)}, from,
                   4 * range.words);
             }
           });
}

size_t PlaneEncoder::scratch_bytes() const {
  if (geometry_.tiles == 0) return 0;
  const uint64_t tile_words = std::min<uint64_t>(
      kTileValues * kScratchBits / 32, RawWords(kTileValues, params_.dtype));
  const uint64_t in_range = std::min<uint64_t>(geometry_.tiles, kRangeTiles);
  return geometry_.ranges() * 4 * (in_range * tile_words + kTileRoom);
}

}  // namespace

std::unique_ptr<StreamEncoder> MakePlaneEncoder(const EncodeParams& params,
                                                Isa isa) {
  return std::make_unique<PlaneEncoder>(params, isa);
}

size_t PlaneMaxBytes(int64_t n, int64_t channels, DType dtype) {
  if (n <= 0 || channels <= 0) return sizeof(StreamHeader);
  const Geometry g(n, channels);
  // Every tile raw; only the flat view's last tile can end inside a word.
  return plane::Sections(g).payload +
         4 * static_cast<size_t>(CeilDiv(n * ItemBytes(dtype), 4)) +
         ScaleBytes(kExponents | kCentres, static_cast<uint64_t>(channels));
}

}  // namespace comptrain
