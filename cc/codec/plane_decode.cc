// Codec A, decoder and ReLU mask: checks the stream, then works range by range.
#include <atomic>
#include <cstring>
#include <exception>
#include <limits>
#include <string>

#include "cc/codec/half.h"
#include "cc/codec/plane.h"
#include "cc/codec/plane_layout.h"
#include "cc/codec/plane_tile.h"

namespace comptrain {
namespace {

using plane::kLanes;
using plane::kPixels;
using plane::kRangeTiles;
using plane::kSlackWords;
using plane::kTileValues;
using plane::StreamView;
using plane::TilePlace;

constexpr int64_t kDecodeCyclesPerRange = 64 * 1000;
constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// The first damaged tile, whichever thread meets it.
class FirstFailure {
 public:
  void Report(int64_t tile) {
    int64_t seen = tile_.load();
    while (tile < seen && !tile_.compare_exchange_weak(seen, tile)) {
    }
  }
  Status ToStatus() const {
    const int64_t tile = tile_.load();
    if (tile == kNone) return {};
    return Status::Damaged(
        "codec A stream: the payload of tile " + std::to_string(tile) +
        " must match its directory entry, its lane formats and the offset "
        "table, got other sizes; the stream is damaged: encode it again");
  }

 private:
  std::atomic<int64_t> tile_{kNone};
};

// Rows of a tile between a tensor and a compact [32][32] copy; `valid` values.
void CopyRows(const uint8_t* from, int64_t from_row, uint8_t* to,
              int64_t to_row, int64_t valid_bytes, int64_t tile_row) {
  for (int64_t done = 0; done < valid_bytes; done += tile_row) {
    std::memcpy(to, from, std::min(tile_row, valid_bytes - done));
    from += from_row;
    to += to_row;
  }
}

bool EntryIsValid(uint16_t entry, uint32_t raw_words) {
  if (entry & 0x8000) return false;
  const uint32_t words = plane::EntryWords(entry);
  if (entry & plane::kRaw) return entry == (plane::kRaw | raw_words);
  if ((entry & plane::kDelta) && !(entry & plane::kZigzag)) return false;
  if (words == 0) return entry == 0;
  return words < raw_words;
}

// Calls body(tile, place, entry, words) for the tiles of ranges [begin, end),
// with kSlackWords readable after the words. Stops a range at damage.
template <typename Body>
void ForTiles(const StreamView& v, int64_t begin, int64_t end,
              FirstFailure* failure, const Body& body) {
  const uint8_t* payload = v.stream + v.sections.payload;
  alignas(64) uint32_t copy[plane::kMaxTileWords + kSlackWords];
  for (int64_t range = begin; range < end; ++range) {
    const int64_t first = range * kRangeTiles;
    const int64_t last = std::min(v.geometry.tiles, first + kRangeTiles);
    uint64_t at = v.RangeStart(range);
    const uint64_t stop = range + 1 < v.geometry.ranges()
                              ? v.RangeStart(range + 1)
                              : v.payload_words;
    if (at > stop || stop > v.payload_words || (range == 0 && at != 0)) {
      failure->Report(first);
      continue;
    }
    int64_t tile = first;
    for (; tile < last; ++tile) {
      const uint16_t entry = v.Entry(tile);
      const TilePlace place = v.geometry.Place(tile);
      const uint32_t words = plane::EntryWords(entry);
      if (!EntryIsValid(entry,
                        plane::RawWords(place.valid, v.quantizer.dtype)) ||
          words > stop - at) {
        break;
      }
      const uint8_t* from = payload + 4 * at;
      const bool inside = v.payload_words - at >= words + kSlackWords;
      if (!inside || reinterpret_cast<uintptr_t>(from) % 4 != 0) {
        std::memcpy(copy, from, 4 * words);
        std::memset(copy + words, 0, 4 * kSlackWords);
        from = reinterpret_cast<const uint8_t*>(copy);
      }
      if (!body(place, entry, reinterpret_cast<const uint32_t*>(from))) break;
      at += words;
    }
    if (tile < last) {
      failure->Report(tile);
    } else if (at != stop) {
      failure->Report(last - 1);
    }
  }
}

// Runs the ranges and turns damage and exceptions into a status.
template <typename Body>
Status RunRanges(const StreamView& v, const ParallelFor& parallel,
                 const Body& body) {
  FirstFailure failure;
  if (v.geometry.tiles == 0 && v.payload_words != 0) {
    return Status::Damaged(
        "codec A stream: an empty tensor must have no payload, got " +
        std::to_string(v.payload_words) + " words");
  }
  try {
    parallel(v.geometry.ranges(), kDecodeCyclesPerRange,
             [&](int64_t begin, int64_t end) {
               ForTiles(v, begin, end, &failure, body);
             });
  } catch (const std::exception& e) {
    return Status::Invalid(std::string("codec A: decoding failed, ") +
                           e.what());
  }
  return failure.ToStatus();
}

Status CheckIsa(Isa isa) {
  if (IsaAvailable(isa)) return {};
  return Status::Invalid(
      "codec A: this machine lacks the instruction set asked for, got isa " +
      std::to_string(static_cast<int>(isa)) + "; use Isa::kBest");
}

// The non-zero values of a raw tile.
void RawMask(const uint32_t* words, DType dtype, int valid,
             uint32_t rows[kPixels]) {
  std::memset(rows, 0, kPixels * sizeof *rows);
  for (int i = 0; i < valid; ++i) {
    const bool zero =
        (FloatBits(LoadFloat(words, dtype, i)) & 0x7f800000) == 0;
    rows[i / kLanes] |= static_cast<uint32_t>(!zero) << i % kLanes;
  }
}

}  // namespace

Status PlaneDecode(const uint8_t* stream, size_t stream_bytes, DType dtype,
                   int64_t n, void* out, const ParallelFor& parallel, Isa isa) {
  Status s = CheckIsa(isa);
  if (!s.ok()) return s;
  StreamView v;
  s = plane::OpenStream(stream, stream_bytes, n, &v);
  if (!s.ok()) return s;
  if (v.quantizer.dtype != dtype) {
    return Status::Damaged(
        std::string("codec A stream: header field dtype must be the type "
                    "asked for, ") +
        plane::DTypeName(dtype) + ", got " +
        plane::DTypeName(v.quantizer.dtype) +
        "; decode with the type it was encoded from");
  }
  if (out == nullptr && n > 0) {
    return Status::Invalid("codec A: out must not be null when n > 0");
  }
  const plane::TileKernels kernels =
      plane::SelectKernels(isa, dtype, v.quantizer.mid_rise);
  const int64_t item = static_cast<int64_t>(ItemBytes(dtype));
  const int64_t row_bytes = v.geometry.row * item, tile_row = kLanes * item;
  return RunRanges(v, parallel, [&](const TilePlace& place, uint16_t entry,
                                    const uint32_t* words) {
    uint8_t* to = static_cast<uint8_t*>(out) + place.offset * item;
    const int64_t valid_bytes = place.valid * item;
    if (entry & plane::kRaw) {
      CopyRows(reinterpret_cast<const uint8_t*>(words), tile_row, to,
               row_bytes, valid_bytes, tile_row);
      return true;
    }
    if (place.valid == kTileValues) {
      return kernels.decode(v.quantizer, entry, words, to, row_bytes);
    }
    alignas(64) uint8_t whole[kTileValues * 4];
    if (!kernels.decode(v.quantizer, entry, words, whole, tile_row)) {
      return false;
    }
    CopyRows(whole, tile_row, to, row_bytes, valid_bytes, tile_row);
    return true;
  });
}

Status PlaneMaskGradient(const uint8_t* stream, size_t stream_bytes,
                         DType dtype, int64_t n, const void* dy, void* dx,
                         const ParallelFor& parallel, Isa isa) {
  Status s = CheckIsa(isa);
  if (!s.ok()) return s;
  StreamView v;
  s = plane::OpenStream(stream, stream_bytes, n, &v);
  if (!s.ok()) return s;
  if (!v.quantizer.mid_rise) {
    return Status::Invalid(
        "codec A stream: header field flags must have mid-rise (1) for a "
        "mask, got 0: small values share the code of zero; encode with "
        "mid_rise = true");
  }
  if ((dy == nullptr || dx == nullptr) && n > 0) {
    return Status::Invalid("codec A: dy and dx must not be null when n > 0");
  }
  const plane::TileKernels kernels = plane::SelectKernels(isa, dtype, true);
  const int64_t item = static_cast<int64_t>(ItemBytes(dtype));
  const int64_t row_bytes = v.geometry.row * item, tile_row = kLanes * item;
  return RunRanges(v, parallel, [&](const TilePlace& place, uint16_t entry,
                                    const uint32_t* words) {
    uint32_t rows[kPixels];
    if (entry & plane::kRaw) {
      RawMask(words, v.quantizer.dtype, place.valid, rows);
    } else if (!kernels.mask(entry, words, rows)) {
      return false;
    }
    const uint8_t* from =
        static_cast<const uint8_t*>(dy) + place.offset * item;
    uint8_t* to = static_cast<uint8_t*>(dx) + place.offset * item;
    if (place.valid == kTileValues) {
      kernels.apply(rows, static_cast<int>(item), from, to, row_bytes);
      return true;
    }
    alignas(64) uint8_t whole[kTileValues * 4] = {};
    const int64_t valid_bytes = place.valid * item;
    CopyRows(from, row_bytes, whole, tile_row, valid_bytes, tile_row);
    kernels.apply(rows, static_cast<int>(item), whole, whole, tile_row);
    CopyRows(whole, tile_row, to, row_bytes, valid_bytes, tile_row);
    return true;
  });
}

}  // namespace comptrain
