// Internal: walks the tiles of a codec A stream, checking every directory
// entry and offset on the way, range by range so that threads share the work.
#ifndef TF_COMPTRAIN_CC_CODEC_PLANE_RANGES_H_
#define TF_COMPTRAIN_CC_CODEC_PLANE_RANGES_H_

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <limits>
#include <string>

#include "cc/codec/check_params.h"
#include "cc/codec/plane_layout.h"
#include "cc/codec/plane_tile.h"

namespace comptrain {
namespace plane {

constexpr int64_t kDecodeCyclesPerRange = 64 * 1000;

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
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> tile_{kNone};
};

inline bool EntryIsValid(uint16_t entry, uint32_t raw_words) {
  if (entry & 0x8000) return false;
  const uint32_t words = EntryWords(entry);
  if (entry & kRaw) return entry == (kRaw | raw_words);
  if ((entry & kDelta) && !(entry & kZigzag)) return false;
  if (words == 0) return entry == 0;
  return words < raw_words;
}

// Calls body(place, entry, words) for the tiles of ranges [begin, end), with
// kSlackWords readable after the words; body returns false for words that do
// not add up. Stops a range at damage and reports it.
template <typename Body>
void ForTiles(const StreamView& v, int64_t begin, int64_t end,
              FirstFailure* failure, const Body& body) {
  const uint8_t* payload = v.stream + v.sections.payload;
  alignas(64) uint32_t copy[kMaxTileWords + kSlackWords];
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
      const uint32_t words = EntryWords(entry);
      if (!EntryIsValid(entry, RawWords(place.valid, v.quantizer.dtype)) ||
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

// Runs work(begin, end, &failure) over [0, n), and turns damage and exceptions
// into a status.
template <typename Work>
Status RunChecked(const StreamView& v, const ParallelFor& parallel, int64_t n,
                  int64_t cost, const Work& work) {
  FirstFailure failure;
  if (v.geometry.tiles == 0 && v.payload_words != 0) {
    return Status::Damaged(
        "codec A stream: an empty tensor must have no payload, got " +
        std::to_string(v.payload_words) + " words");
  }
  try {
    parallel(n, cost, [&](int64_t begin, int64_t end) {
      work(begin, end, &failure);
    });
  } catch (const std::exception& e) {
    return Status::Invalid(std::string("codec A: decoding failed, ") +
                           e.what());
  }
  return failure.ToStatus();
}

// ForTiles over all ranges.
template <typename Body>
Status RunRanges(const StreamView& v, const ParallelFor& parallel,
                 const Body& body) {
  return RunChecked(v, parallel, v.geometry.ranges(), kDecodeCyclesPerRange,
                    [&](int64_t begin, int64_t end, FirstFailure* failure) {
                      ForTiles(v, begin, end, failure, body);
                    });
}

// OpenStream for a caller that reads values of dtype.
inline Status OpenValues(const uint8_t* stream, size_t stream_bytes,
                         DType dtype, int64_t n, StreamView* v) {
  Status s = OpenStream(stream, stream_bytes, n, v);
  if (!s.ok() || v->quantizer.dtype == dtype) return s;
  return Status::Damaged(
      std::string("codec A stream: header field dtype must be the type asked "
                  "for, ") +
      DTypeName(dtype) + ", got " + DTypeName(v->quantizer.dtype) +
      "; decode with the type it was encoded from");
}

}  // namespace plane
}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_PLANE_RANGES_H_
