// Internal: walks the tiles of a plane stream, checking every directory
// entry and offset on the way, range by range so that threads share the work.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>

#include "cc/codec/stream/check_params.h"
#include "cc/codec/plane/layout.h"
#include "cc/codec/plane/tile.h"
#include "cc/codec/stream/check_stream.h"

namespace comptrain::plane {

constexpr int64_t kDecodeCyclesPerRange = 64 * 1000;

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
  if (v.geometry.tiles == 0) {
    return CheckEmptyPayload(CodecId::kPlane, v.payload_words);
  }
  FirstFailure failure;
  try {
    parallel(n, cost,
             [&](int64_t begin, int64_t end) { work(begin, end, &failure); });
  } catch (const std::exception& e) {
    return OutOfMemory(CodecId::kPlane, "decoding", e);
  }
  return failure.ToStatus(CodecId::kPlane, "tile",
                          "match its directory entry, its lane formats and the "
                          "offset table, got other sizes");
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
  const Status s = OpenStream(stream, stream_bytes, n, v);
  return s.ok() ? CheckDType(CodecId::kPlane, v->quantizer.dtype, dtype) : s;
}

}  // namespace comptrain::plane
