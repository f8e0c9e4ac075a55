// Packing of a tile's codes into words, and back: the reference the vector
// kernels are compared with, and what they use for wide codes.
#include <cstring>

#include "cc/codec/plane/lane.h"
#include "cc/codec/plane/tile.h"

namespace comptrain::plane {
namespace {

void ChooseFormats(const uint16_t* codes, int max_sparse,
                   LaneFormat formats[kLanes]) {
  uint16_t largest[kLanes] = {};
  uint32_t maps[kLanes] = {};
  for (int t = 0; t < kPixels; ++t) {
    for (int l = 0; l < kLanes; ++l) {
      const uint16_t u = codes[t * kLanes + l];
      largest[l] = u > largest[l] ? u : largest[l];
      maps[l] |= static_cast<uint32_t>(u != 0) << t;
    }
  }
  for (int l = 0; l < kLanes; ++l) {
    formats[l] = ChooseFormat(largest[l], maps[l], max_sparse);
  }
}

// Narrow tiles: a nibble a lane, 0-8 a dense width, 9-15 a sparse width of
// 1-7. Wide tiles: a byte a lane, the width plus 32 when sparse.
template <bool kIsWide>
struct Header {
  static constexpr int kWords = kIsWide ? kWideHeaderWords : kNarrowHeaderWords;
  static constexpr int kMaxSparse = kIsWide ? kWideMaxSparse : kNarrowMaxSparse;
  uint8_t bytes[4 * kWords] = {};

  void Put(int lane, const LaneFormat& f) {
    bytes[lane % (4 * kWords)] |=
        static_cast<uint8_t>(FormatCode(f, kIsWide) << lane / (4 * kWords) * 4);
  }
  bool Get(int lane, LaneFormat* f) const {
    const uint32_t code = bytes[lane % (4 * kWords)] >> lane / (4 * kWords) * 4;
    return FormatOfCode(kIsWide ? code : code & 15, kIsWide, f);
  }
};

// Words of a tile: header, bit maps, dense lanes, sparse lanes.
template <bool kIsWide>
uint32_t CountWords(const LaneFormat formats[kLanes]) {
  int dense = 0, sparse = 0, maps = 0;
  for (int l = 0; l < kLanes; ++l) {
    (formats[l].sparse ? sparse : dense) += formats[l].value_bits();
    maps += formats[l].sparse;
  }
  if (dense + maps == 0) return 0;
  return static_cast<uint32_t>(Header<kIsWide>::kWords + maps + dense / 32 +
                               (sparse + 31) / 32);
}

// Bits, lowest first, into words; writes up to a word past the last one.
class BitWriter {
 public:
  explicit BitWriter(uint32_t* out) : out_(out) {}
  void Put(uint32_t value, int bits) {
    buffer_ |= static_cast<uint64_t>(value) << filled_;
    filled_ += bits;
    *out_ = static_cast<uint32_t>(buffer_);
    out_ += filled_ >> 5;
    buffer_ >>= filled_ & 32;
    filled_ &= 31;
  }
  void Finish() { *out_ = static_cast<uint32_t>(buffer_); }

 private:
  uint32_t* out_;
  uint64_t buffer_ = 0;
  int filled_ = 0;
};

// Reads up to a word past the last one.
class BitReader {
 public:
  explicit BitReader(const uint32_t* in) : in_(in) {}
  uint32_t Get(int bits) {
    uint64_t two_words;
    std::memcpy(&two_words, in_ + (at_ >> 5), sizeof two_words);
    const uint64_t value = two_words >> (at_ & 31);
    at_ += bits;
    return static_cast<uint32_t>(value) & ((1u << bits) - 1);
  }

 private:
  const uint32_t* in_;
  int at_ = 0;
};

template <bool kIsWide>
uint32_t Words(const uint16_t* codes) {
  LaneFormat formats[kLanes];
  ChooseFormats(codes, Header<kIsWide>::kMaxSparse, formats);
  return CountWords<kIsWide>(formats);
}

template <bool kIsWide>
void Pack(const uint16_t* codes, uint32_t* out) {
  LaneFormat formats[kLanes];
  ChooseFormats(codes, Header<kIsWide>::kMaxSparse, formats);
  Header<kIsWide> header;
  uint32_t* at = out + Header<kIsWide>::kWords;
  for (int l = 0; l < kLanes; ++l) {
    header.Put(l, formats[l]);
    if (formats[l].sparse) *at++ = formats[l].map;
  }
  std::memcpy(out, header.bytes, sizeof header.bytes);
  for (int l = 0; l < kLanes; ++l) {
    if (formats[l].sparse || formats[l].width == 0) continue;
    BitWriter bits(at);
    for (int t = 0; t < kPixels; ++t) {
      bits.Put(codes[t * kLanes + l], formats[l].width);
    }
    at += formats[l].width;
  }
  BitWriter bits(at);
  for (int l = 0; l < kLanes; ++l) {
    if (!formats[l].sparse) continue;
    for (uint32_t map = formats[l].map; map != 0; map &= map - 1) {
      bits.Put(codes[TrailingZeros(map) * kLanes + l] - 1u, formats[l].width);
    }
  }
  bits.Finish();
}

template <bool kIsWide>
bool Unpack(const uint32_t* words, uint32_t n_words, uint16_t* codes) {
  std::memset(codes, 0, kTileValues * sizeof *codes);
  if (n_words == 0) return true;
  if (n_words < Header<kIsWide>::kWords) return false;
  LaneFormat formats[kLanes];
  Header<kIsWide> header;
  std::memcpy(header.bytes, words, sizeof header.bytes);
  uint32_t maps = 0;
  for (int l = 0; l < kLanes; ++l) {
    if (!header.Get(l, &formats[l])) return false;
    maps += formats[l].sparse;
  }
  if (Header<kIsWide>::kWords + maps > n_words) return false;
  const uint32_t* at = words + Header<kIsWide>::kWords;
  for (int l = 0; l < kLanes; ++l) {
    if (formats[l].sparse) std::memcpy(&formats[l].map, at++, sizeof *at);
  }
  if (CountWords<kIsWide>(formats) != n_words) return false;
  for (int l = 0; l < kLanes; ++l) {
    if (formats[l].sparse || formats[l].width == 0) continue;
    BitReader bits(at);
    for (int t = 0; t < kPixels; ++t) {
      codes[t * kLanes + l] = static_cast<uint16_t>(bits.Get(formats[l].width));
    }
    at += formats[l].width;
  }
  BitReader bits(at);
  for (int l = 0; l < kLanes; ++l) {
    for (uint32_t map = formats[l].map; map != 0; map &= map - 1) {
      const int t = TrailingZeros(map);
      codes[t * kLanes + l] =
          static_cast<uint16_t>(bits.Get(formats[l].width) + 1);
    }
  }
  return true;
}

}  // namespace

uint32_t PackedWords(const uint16_t codes[kTileValues], bool wide) {
  return wide ? Words<true>(codes) : Words<false>(codes);
}
void PackCodes(const uint16_t codes[kTileValues], bool wide, uint32_t* out) {
  wide ? Pack<true>(codes, out) : Pack<false>(codes, out);
}
bool UnpackCodes(const uint32_t* words, uint32_t n_words, bool wide,
                 uint16_t codes[kTileValues]) {
  return wide ? Unpack<true>(words, n_words, codes)
              : Unpack<false>(words, n_words, codes);
}

}  // namespace comptrain::plane
