// plane, encoder: cuts the tensor into ranges of tiles, encodes them in
// parallel into slices of scratch, and lays the stream out.
#include <algorithm>
#include <cstring>
#include <exception>
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
// Bits per value that PlaneScratchBytes allows for.
constexpr int kScratchBits = 6;

struct Range {
  uint64_t words = 0;
  bool in_scratch = true;
  EncodeStats stats;
};

}  // namespace

struct PlaneEncoder::Impl {
  EncodeParams params;
  Geometry geometry;
  Quantizer quantizer;
  plane::TileKernels kernels;
  Status checked;

  const uint8_t* x = nullptr;
  uint32_t* scratch = nullptr;
  uint64_t slice_words = 0;  // a range
  std::vector<uint16_t> entries;
  std::vector<Range> ranges;
  size_t total_bytes = 0;
  EncodeStats stats;
  bool encoded = false;

  void EncodeRange(int64_t range, uint32_t* out, uint64_t room, Range* result);
  uint16_t EncodeOne(int64_t tile, uint32_t* out, plane::TileSums* sums) const;
  void FillHeader(uint8_t* stream) const;
};

PlaneEncoder::PlaneEncoder(const EncodeParams& params, Isa isa)
    : impl_(new Impl) {
  impl_->params = params;
  impl_->checked = CheckParams(CodecId::kPlane, params, isa);
  if (!impl_->checked.ok()) return;
  impl_->geometry = Geometry(params.n, params.channels);
  impl_->checked =
      CheckSize(CodecId::kPlane, params.n, impl_->geometry.tiles,
                plane::Sections(impl_->geometry).payload);
  impl_->quantizer =
      MakeQuantizer(params.dtype, CodingOf(params), params.eb);
  impl_->kernels = plane::SelectKernels(isa, params.dtype, impl_->quantizer.coding);
}

PlaneEncoder::~PlaneEncoder() = default;

// A tile that reaches over the tensor's end is encoded from a copy padded with
// zeros; a raw one holds the valid values only.
uint16_t PlaneEncoder::Impl::EncodeOne(int64_t tile, uint32_t* out,
                                       plane::TileSums* sums) const {
  const plane::TilePlace place = geometry.Place(tile);
  const int64_t item = static_cast<int64_t>(ItemBytes(params.dtype));
  const uint8_t* from = x + place.offset * item;
  const int64_t tile_row = plane::kLanes * item;
  int64_t row_bytes = geometry.row * item;
  alignas(64) uint8_t padded[kTileValues * 4];
  if (place.valid < kTileValues) {
    std::memset(padded, 0, sizeof padded);
    CopyRows(from, row_bytes, padded, tile_row, place.valid * item,
                    tile_row);
    from = padded;
    row_bytes = tile_row;
  }
  const uint8_t* next = from;
  if (row_bytes >= kPrefetchRowBytes && tile + 1 < geometry.tiles) {
    const plane::TilePlace after = geometry.Place(tile + 1);
    if (after.valid == kTileValues) next = x + after.offset * item;
  }
  const uint16_t entry =
      kernels.encode(CountedFrom(quantizer, tile * kTileValues), from,
                     next, row_bytes, out, sums);
  const uint32_t raw_words = RawWords(place.valid, params.dtype);
  if (!(entry & plane::kRaw) && plane::EntryWords(entry) < raw_words) {
    return entry;
  }
  out[raw_words - 1] = 0;
  uint8_t* to = reinterpret_cast<uint8_t*>(out);
  CopyRows(from, row_bytes, to, tile_row, place.valid * item, tile_row);
  return static_cast<uint16_t>(plane::kRaw | raw_words);
}

// Encodes as many words as `room` holds, and counts the rest.
void PlaneEncoder::Impl::EncodeRange(int64_t range, uint32_t* out,
                                     uint64_t room, Range* result) {
  alignas(64) uint32_t spare[kTileRoom];
  const int64_t first = range * kRangeTiles;
  const int64_t last = std::min(geometry.tiles, first + kRangeTiles);
  Range r;
  uint64_t at = 0;
  for (int64_t tile = first; tile < last; ++tile) {
    plane::TileSums sums;
    const bool direct = r.in_scratch && room - at >= kTileRoom;
    uint32_t* to = direct ? out + at : spare;
    const uint16_t entry = EncodeOne(tile, to, &sums);
    const uint32_t words = plane::EntryWords(entry);
    entries[tile] = entry;
    r.in_scratch = r.in_scratch && words <= room - at;
    if (!direct && r.in_scratch && words > 0) {
      std::memcpy(out + at, spare, 4 * words);
    }
    at += words;
    r.stats.nonzero += sums.nonzero;
    r.stats.sum += sums.sum;
    r.stats.sum_sq += sums.sum_sq;
  }
  r.words = at;
  *result = r;
}

Status PlaneEncoder::Encode(const void* x, uint8_t* scratch,
                            size_t scratch_bytes, const ParallelFor& parallel) {
  Impl& m = *impl_;
  m.encoded = false;
  if (!m.checked.ok()) return m.checked;
  if (x == nullptr && m.params.n > 0) {
    return Status::Invalid("plane: x must not be null when n > 0");
  }
  const int64_t n_ranges = m.geometry.ranges();
  try {
    m.entries.resize(m.geometry.tiles);
    m.ranges.resize(n_ranges);
    m.x = static_cast<const uint8_t*>(x);
    // Whole words, aligned as u32 whatever the caller passed.
    const size_t skew = -reinterpret_cast<uintptr_t>(scratch) & 3;
    const bool usable = scratch != nullptr && scratch_bytes > skew;
    m.scratch = usable ? reinterpret_cast<uint32_t*>(scratch + skew) : nullptr;
    m.slice_words =
        usable && n_ranges > 0 ? (scratch_bytes - skew) / 4 / n_ranges : 0;
    parallel(n_ranges, kEncodeCyclesPerRange, [&m](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        uint32_t* slice =
            m.scratch == nullptr ? nullptr : m.scratch + r * m.slice_words;
        m.EncodeRange(r, slice, m.slice_words, &m.ranges[r]);
      }
    });
  } catch (const std::exception& e) {
    return OutOfMemory(CodecId::kPlane, "encoding", e);
  }
  uint64_t words = 0;
  m.stats = EncodeStats();
  for (const Range& r : m.ranges) {
    words += r.words;
    m.stats.nonzero += r.stats.nonzero;
    m.stats.sum += r.stats.sum;
    m.stats.sum_sq += r.stats.sum_sq;
  }
  const Status s = CheckWords(CodecId::kPlane, words);
  if (!s.ok()) return s;
  m.total_bytes = plane::Sections(m.geometry).payload + 4 * words;
  m.encoded = true;
  return {};
}

size_t PlaneEncoder::total_bytes() const { return impl_->total_bytes; }

const EncodeStats& PlaneEncoder::stats() const { return impl_->stats; }

// Header, directory and table, with their padding.
void PlaneEncoder::Impl::FillHeader(uint8_t* stream) const {
  const plane::Sections at(geometry);
  std::memset(stream, 0, at.payload);
  StreamHeader h =
      MakeHeader(CodecId::kPlane, params.dtype, params.n, params.channels,
                 plane::kLog2Pixels, geometry.tiles, at, total_bytes);
  h.flags = FlagsOf(quantizer.coding, geometry.flat);
  h.step = quantizer.step;
  h.inv = quantizer.inv;
  std::memcpy(stream, &h, sizeof h);
  if (geometry.tiles == 0) return;
  std::memcpy(stream + at.directory, entries.data(), 2 * entries.size());
  uint32_t start = 0;
  for (size_t r = 0; r < ranges.size(); ++r) {
    std::memcpy(stream + at.table + 4 * r, &start, sizeof start);
    start += static_cast<uint32_t>(ranges[r].words);
  }
}

Status PlaneEncoder::Write(uint8_t* stream, const ParallelFor& parallel) {
  Impl& m = *impl_;
  if (!m.encoded) {
    return Status::Invalid("plane: Write needs an Encode that succeeded");
  }
  if (stream == nullptr) {
    return Status::Invalid("plane: stream must not be null");
  }
  try {
    m.FillHeader(stream);
    const plane::Sections at(m.geometry);
    const uint8_t* starts = stream + at.table;
    uint8_t* payload = stream + at.payload;
    parallel(m.geometry.ranges(), kEncodeCyclesPerRange / 8,
             [&](int64_t begin, int64_t end) {
      std::vector<uint32_t> again;
      for (int64_t r = begin; r < end; ++r) {
        uint32_t start;
        std::memcpy(&start, starts + 4 * r, sizeof start);
        const Range range = m.ranges[r];
        if (range.words == 0) continue;
        const uint32_t* from = m.scratch + r * m.slice_words;
        if (!range.in_scratch) {
          Range same;
          again.resize(range.words);
          m.EncodeRange(r, again.data(), range.words, &same);
          from = again.data();
        }
        std::memcpy(payload + 4 * static_cast<uint64_t>(start), from,
                    4 * range.words);
      }
    });
  } catch (const std::exception& e) {
    return OutOfMemory(CodecId::kPlane, "encoding", e);
  }
  return {};
}

size_t PlaneScratchBytes(int64_t n, int64_t channels, DType dtype) {
  if (n <= 0 || channels <= 0) return 0;
  const Geometry g(n, channels);
  const uint64_t tile_words = std::min<uint64_t>(
      kTileValues * kScratchBits / 32, RawWords(kTileValues, dtype));
  const uint64_t in_range = std::min<uint64_t>(g.tiles, kRangeTiles);
  return g.ranges() * 4 * (in_range * tile_words + kTileRoom);
}

size_t PlaneMaxBytes(int64_t n, int64_t channels, DType dtype) {
  if (n <= 0 || channels <= 0) return sizeof(StreamHeader);
  const Geometry g(n, channels);
  // Every tile raw; only the flat view's last tile can end inside a word.
  return plane::Sections(g).payload +
         4 * static_cast<size_t>(CeilDiv(n * ItemBytes(dtype), 4));
}

}  // namespace comptrain
