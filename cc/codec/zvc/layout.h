// Where everything lies in a zvc stream, and what of it is checked.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/codec/common/bits.h"
#include "cc/codec/common/host_device.h"
#include "cc/codec/common/status.h"
#include "cc/codec/stream/stream.h"
#include "cc/codec/zvc/kernels.h"

namespace comptrain::zvc {

constexpr int kRangeChunks = 16;  // chunks a table entry, and a unit of work

// The tensor as a flat run of values, cut into chunks.
struct Layout {
  int64_t n = 0;
  int64_t item = 4;  // bytes of an element
  int64_t chunks = 0;
  int64_t ranges = 0;
  uint64_t directory = 0, table = 0, payload = 0;  // byte offsets

  Layout() = default;
  Layout(int64_t n_values, DType dtype)
      : n(n_values),
        item(static_cast<int64_t>(ItemBytes(dtype))),
        chunks(CeilDiv(n, kChunkValues)),
        ranges(CeilDiv(chunks, kRangeChunks)),
        directory(sizeof(StreamHeader)),
        table(directory + AlignSection(2 * static_cast<uint64_t>(chunks))),
        payload(table + AlignSection(4 * static_cast<uint64_t>(ranges))) {}

  // Values of a chunk; the last one may be short.
  COMPTRAIN_HD int Valid(int64_t chunk) const {
    const int64_t left = n - chunk * kChunkValues;
    return left < kChunkValues ? static_cast<int>(left) : kChunkValues;
  }
  COMPTRAIN_HD uint32_t RawWords(int valid) const {
    return static_cast<uint32_t>(CeilDiv(valid * item, 4));
  }
  // Of a chunk with `count` non-zeros: none when there are none, raw when the
  // mask does not pay.
  COMPTRAIN_HD uint32_t Words(int valid, int count) const {
    if (count == 0) return 0;
    const uint32_t raw = RawWords(valid), packed = PackedWords(valid, count);
    return packed < raw ? packed : raw;
  }
  COMPTRAIN_HD uint32_t PackedWords(int valid, int count) const {
    return static_cast<uint32_t>(CeilDiv(valid, 32) + CeilDiv(count * item, 4));
  }
};

// A checked stream.
struct StreamView {
  Layout layout;
  DType dtype = DType::kF32;
  const uint8_t* stream = nullptr;
  uint64_t payload_words = 0;

  uint32_t Words(int64_t chunk) const {
    return ElementOf<uint16_t>(stream + layout.directory, chunk);
  }
  uint32_t RangeStart(int64_t range) const {
    return ElementOf<uint32_t>(stream + layout.table, range);
  }
};

// Checks every header field and the padding between sections; directory and
// payload are left to the decoder.
Status OpenStream(const uint8_t* stream, size_t stream_bytes, int64_t n,
                  StreamView* view);

}  // namespace comptrain::zvc
