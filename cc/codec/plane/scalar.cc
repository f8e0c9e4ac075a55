// plane's tile kernels in plain C++: the definition of the arithmetic.
#include <cmath>
#include <cstring>

#include "cc/codec/common/half.h"
#include "cc/codec/plane/lane.h"
#include "cc/codec/plane/tile.h"
#include "cc/codec/stream/quantize.h"
#include "cc/codec/stream/select_kernel.h"

namespace comptrain::plane {
namespace {

uint32_t WordsOf(const uint16_t* codes, bool* wide) {
  uint16_t any = 0;
  for (int i = 0; i < kTileValues; ++i) any |= codes[i];
  *wide = any > 255;
  return PackedWords(codes, *wide);
}

// Picks plain, zigzag or delta codes, packs them, returns the entry.
uint16_t PackTile(const int16_t* q, uint32_t* out) {
  uint16_t plain[kTileValues], delta[kTileValues];
  int nonzero = 0;
  bool negative = false;
  for (int i = 0; i < kTileValues; ++i) {
    nonzero += q[i] != 0;
    negative |= q[i] < 0;
  }
  for (int i = 0; i < kTileValues; ++i) {
    plain[i] = negative ? Zigzag(q[i]) : static_cast<uint16_t>(q[i]);
  }
  uint16_t flags = negative ? kZigzag : 0;
  const uint16_t* codes = plain;
  bool wide;
  uint32_t words = WordsOf(plain, &wide);
  if (nonzero > kDeltaMinNonzero) {
    for (int i = 0; i < kTileValues; ++i) {
      const int before = i < kLanes ? 0 : q[i - kLanes];
      delta[i] = Zigzag(static_cast<int16_t>(q[i] - before));
    }
    bool delta_wide;
    const uint32_t delta_words = WordsOf(delta, &delta_wide);
    if (delta_words < words) {
      words = delta_words;
      wide = delta_wide;
      codes = delta;
      flags = kDelta | kZigzag;
    }
  }
  if (words == 0) return 0;
  PackCodes(codes, wide, out);
  return static_cast<uint16_t>(words | flags | (wide ? kWide : 0));
}

// False when a value is further than eb from its code's value.
template <Coding kCoding>
bool WithinBound(const Quantizer& quant, const void* x, int64_t row_bytes,
                 const int16_t* q) {
  for (int t = 0; t < kPixels; ++t) {
    const uint8_t* row = static_cast<const uint8_t*>(x) + t * row_bytes;
    for (int l = 0; l < kLanes; ++l) {
      const int i = t * kLanes + l;
      if (!CodeWithinBound<kCoding>(OfLane(quant, t, l),
                                    LoadFloat(row, quant.dtype, l), q[i],
                                    quant.counter + i)) {
        return false;
      }
    }
  }
  return true;
}

template <Coding kCoding>
uint16_t EncodeTile(const Quantizer& quant, const void* x, const void* /*next*/,
                    int64_t row_bytes, uint32_t* out, int32_t* nonzero) {
  int16_t q[kTileValues];
  *nonzero = 0;
  bool coded = true, verify = quant.verify_all;
  for (int t = 0; t < kPixels; ++t) {
    const uint8_t* row = static_cast<const uint8_t*>(x) + t * row_bytes;
    for (int l = 0; l < kLanes; ++l) {
      const float v = LoadFloat(row, quant.dtype, l);
      const int i = t * kLanes + l;
      int code = 0;
      const Quantizer lane = OfLane(quant, t, l);
      coded &= QuantizeValue<kCoding>(lane, v, quant.counter + i, &code);
      verify |= NeedsCheck<kCoding>(lane, code);
      q[i] = static_cast<int16_t>(code);
      *nonzero += !CountsAsZero(v);
    }
  }
  if (!coded) return kRaw;
  if (verify && !WithinBound<kCoding>(quant, x, row_bytes, q)) {
    return kRaw;
  }
  return PackTile(q, out);
}

template <Coding kCoding>
bool DecodeTile(const Quantizer& quant, uint16_t entry, const uint32_t* words,
                void* out, int64_t row_bytes) {
  int16_t q[kTileValues];
  if (!DecodeCodes(entry, words, q)) return false;
  for (int t = 0; t < kPixels; ++t) {
    uint8_t* row = static_cast<uint8_t*>(out) + t * row_bytes;
    for (int l = 0; l < kLanes; ++l) {
      const int i = t * kLanes + l;
      StoreFloat(DequantizeValue<kCoding>(OfLane(quant, t, l), q[i],
                                          quant.counter + i),
                 quant.dtype, row, l);
    }
  }
  return true;
}

bool MaskTile(uint16_t entry, const uint32_t* words, uint32_t rows[kPixels]) {
  int16_t q[kTileValues];
  if (!DecodeCodes(entry, words, q)) return false;
  for (int t = 0; t < kPixels; ++t) {
    rows[t] = 0;
    for (int l = 0; l < kLanes; ++l) {
      rows[t] |= static_cast<uint32_t>(q[t * kLanes + l] != 0) << l;
    }
  }
  return true;
}

void ApplyMask(const uint32_t rows[kPixels], int item, const uint8_t* dy,
               uint8_t* dx, int64_t row_bytes) {
  for (int t = 0; t < kPixels; ++t) {
    for (int l = 0; l < kLanes; ++l) {
      const int64_t at = t * row_bytes + l * item;
      if (rows[t] >> l & 1) {
        std::memmove(dx + at, dy + at, item);
      } else {
        std::memset(dx + at, 0, item);
      }
    }
  }
}

}  // namespace

bool DecodeCodes(uint16_t entry, const uint32_t* words,
                 int16_t q[kTileValues]) {
  uint16_t codes[kTileValues];
  const uint32_t n_words = entry & kWordsMask;
  if (!UnpackCodes(words, n_words, (entry & kWide) != 0, codes)) return false;
  for (int i = 0; i < kTileValues; ++i) {
    q[i] =
        (entry & kZigzag) ? Unzigzag(codes[i]) : static_cast<int16_t>(codes[i]);
  }
  if (entry & kDelta) {
    for (int i = kLanes; i < kTileValues; ++i) {
      q[i] = static_cast<int16_t>(q[i] + q[i - kLanes]);
    }
  }
  return true;
}

TileKernels KernelsScalar(DType /*dtype*/, Coding coding) {
  return SelectCoding(coding, [](auto c) -> TileKernels {
    return {EncodeTile<c()>, DecodeTile<c()>, MaskTile, ApplyMask};
  });
}

}  // namespace comptrain::plane
