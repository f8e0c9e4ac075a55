// The 64-byte header every stream starts with. docs/codec-format.md is the
// specification.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/codec/common/dtype.h"
#include "cc/codec/common/host_device.h"

namespace comptrain {

enum class CodecId : uint8_t { kPlane = 1, kRans = 2, kZvc = 3 };

enum StreamFlags : uint8_t {
  kMidRise = 1,  // zero code only for exact zeros: the stream carries the mask
  kDither = 2,   // subtractive dither: error independent of the data; the
                 // stream carries the mask as well; not with kMidRise
  kFlat = 4,     // viewed as [., 32]: plane where channels % 32 != 0, rans
                 // where channels % 8 != 0
  kExponents = 8,  // the stream ends in an exponent for each channel
  kCentres = 16,   // and in a centre for each channel; with kDither
};

// How values become codes.
enum class Coding : uint8_t {
  kPlain,    // rounded to the nearest step
  kMidRise,  // code 0 for zeros alone, the middle of a step for others
  kDither,   // code 0 for zeros alone, others rounded after a random offset
};

constexpr uint32_t kStreamMagic = 0x31525443;  // "CTR1", little-endian
constexpr uint8_t kStreamVersion = 4;

struct StreamHeader {
  uint32_t magic;
  uint8_t version;
  uint8_t codec;  // CodecId
  uint8_t dtype;  // DType
  uint8_t flags;  // StreamFlags
  uint64_t n;     // elements
  uint32_t channels;
  uint32_t log2_pixels;  // log2 of pixels in a tile or chunk
  float step;            // 2 eb (1 - 2^-13)
  float inv;             // 1 / step
  uint64_t total_bytes;  // of the whole stream, header included
  uint32_t n_chunks;
  uint32_t directory_offset;  // bytes from the start of the stream
  uint32_t table_offset;
  uint32_t payload_offset;
  uint32_t seed;       // where the numbers of dither begin; else 0
  uint8_t padding[4];  // zero
};
static_assert(sizeof(StreamHeader) == 64, "the stream header is 64 bytes");
static_assert(offsetof(StreamHeader, n) == 8, "packed layout");
static_assert(offsetof(StreamHeader, step) == 24, "packed layout");
static_assert(offsetof(StreamHeader, total_bytes) == 32, "packed layout");
static_assert(offsetof(StreamHeader, payload_offset) == 52, "packed layout");
static_assert(offsetof(StreamHeader, seed) == 56, "packed layout");

// Sections begin at multiples of 16 bytes.
static inline uint64_t AlignSection(uint64_t bytes) {
  return (bytes + 15) / 16 * 16;
}

// Element i of a section, which may lie anywhere.
template <class T>
T ElementOf(const uint8_t* section, int64_t i) {
  T v;
  std::memcpy(&v, section + static_cast<int64_t>(sizeof v) * i, sizeof v);
  return v;
}

// Writes a section of u32: where items begin that take words(item) each.
template <class Items, class Words>
void PutStarts(const Items& items, const Words& words, uint8_t* section) {
  uint32_t start = 0;
  for (const auto& item : items) {
    std::memcpy(section, &start, sizeof start);
    section += sizeof start;
    start += static_cast<uint32_t>(words(item));
  }
}

// Words that so many values take as they are.
static inline uint32_t RawWords(int values, DType dtype) {
  return static_cast<uint32_t>((values * ItemBytes(dtype) + 3) / 4);
}

// What a stream ends in, by its flags: exponents, an i8 a channel, then
// centres, an i16 a channel, each padded with zeros to words of 4 bytes.
COMPTRAIN_HD constexpr uint64_t AlignWord(uint64_t bytes) {
  return (bytes + 3) / 4 * 4;
}
COMPTRAIN_HD constexpr uint64_t ExponentBytes(int flags, uint64_t channels) {
  return (flags & kExponents) ? AlignWord(channels) : 0;
}
COMPTRAIN_HD constexpr uint64_t CentreBytes(int flags, uint64_t channels) {
  return (flags & kCentres) ? AlignWord(2 * channels) : 0;
}
COMPTRAIN_HD constexpr uint64_t ScaleBytes(int flags, uint64_t channels) {
  return ExponentBytes(flags, channels) + CentreBytes(flags, channels);
}

// Rows of row_bytes from one place to another, up to `bytes` in all.
static inline void CopyRows(const uint8_t* from, int64_t from_row, uint8_t* to,
                            int64_t to_row, int64_t bytes, int64_t row_bytes) {
  for (int64_t done = 0; done < bytes; done += row_bytes) {
    std::memcpy(to, from, std::min(row_bytes, bytes - done));
    from += from_row;
    to += to_row;
  }
}

// What a stream holds: n elements in rows of `channels`.
struct Contents {
  CodecId codec;
  DType dtype;
  int64_t n, channels;
};

// All but flags, step and inv. at: has the offsets of the sections directory,
// table and payload.
template <class Sections>
StreamHeader MakeHeader(const Contents& of, int log2_pixels, int64_t chunks,
                        const Sections& at, uint64_t total_bytes) {
  StreamHeader h = {};
  h.magic = kStreamMagic;
  h.version = kStreamVersion;
  h.codec = static_cast<uint8_t>(of.codec);
  h.dtype = static_cast<uint8_t>(of.dtype);
  h.n = static_cast<uint64_t>(of.n);
  h.channels = static_cast<uint32_t>(of.channels);
  h.log2_pixels = static_cast<uint32_t>(log2_pixels);
  h.total_bytes = total_bytes;
  h.n_chunks = static_cast<uint32_t>(chunks);
  h.directory_offset = static_cast<uint32_t>(at.directory);
  h.table_offset = static_cast<uint32_t>(at.table);
  h.payload_offset = static_cast<uint32_t>(at.payload);
  return h;
}

}  // namespace comptrain
