// Codec A's tile kernels in plain C++: the definition of the arithmetic.
#include <cfloat>
#include <cmath>
#include <cstring>

#include "cc/codec/half.h"
#include "cc/codec/plane_tile.h"

namespace comptrain {
namespace plane {
namespace {

constexpr int kMinCode = -32768, kMaxCode = 32767;

bool IsZero(float x) { return (FloatBits(x) & 0x7f800000) == 0; }

// Nearest even, for |t| < 2^22: the sum has no bits left below the point.
float RoundToEven(float t) {
  const float magic = 12582912.0f;
  return (t + magic) - magic;
}

// False when x has no code.
template <bool kMidRiseCodes>
bool Quantize(const Quantizer& q, float x, int* code) {
  const float t = x * q.inv;
  if (!(std::fabs(t) < 65536.0f)) return false;
  int c;
  if (kMidRiseCodes) {
    c = static_cast<int>(std::fabs(t)) + 1;
    if (IsZero(x)) c = 0;
    if (x < 0) c = -c;
  } else {
    c = static_cast<int>(RoundToEven(t));
  }
  *code = c < kMinCode ? kMinCode : c > kMaxCode ? kMaxCode : c;
  return true;
}

template <bool kMidRiseCodes>
float Dequantize(const Quantizer& q, int code) {
  float level = static_cast<float>(code);
  if (kMidRiseCodes) level -= code > 0 ? 0.5f : code < 0 ? -0.5f : 0.0f;
  return level * q.step;
}

uint16_t Zigzag(int16_t q) {
  return static_cast<uint16_t>(static_cast<uint16_t>(q) << 1 ^ (q >> 15));
}

int16_t Unzigzag(uint16_t u) {
  return static_cast<int16_t>(u >> 1 ^ -(u & 1));
}

TileSums FoldSums(int32_t nonzero, float* sum, float* sum_sq) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) {
      sum[l] += sum[l + half];
      sum_sq[l] += sum_sq[l + half];
    }
  }
  return {nonzero, sum[0], sum_sq[0]};
}

uint32_t PackedWords(const uint16_t* codes, bool* wide) {
  uint16_t any = 0;
  for (int i = 0; i < kTileValues; ++i) any |= codes[i];
  *wide = any > 255;
  return *wide ? WideWords(codes) : NarrowWords(codes);
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
  uint32_t words = PackedWords(plain, &wide);
  if (nonzero > kDeltaMinNonzero) {
    for (int i = 0; i < kTileValues; ++i) {
      const int before = i < kLanes ? 0 : q[i - kLanes];
      delta[i] = Zigzag(static_cast<int16_t>(q[i] - before));
    }
    bool delta_wide;
    const uint32_t delta_words = PackedWords(delta, &delta_wide);
    if (delta_words < words) {
      words = delta_words;
      wide = delta_wide;
      codes = delta;
      flags = kDelta | kZigzag;
    }
  }
  if (words == 0) return 0;
  if (wide) {
    PackWide(codes, out);
  } else {
    PackNarrow(codes, out);
  }
  return static_cast<uint16_t>(words | flags | (wide ? kWide : 0));
}

// False when a value is further than eb from its code's value.
template <bool kMidRiseCodes>
bool WithinBound(const Quantizer& quant, const void* x, int64_t row_bytes,
                 const int16_t* q) {
  for (int t = 0; t < kPixels; ++t) {
    const uint8_t* row = static_cast<const uint8_t*>(x) + t * row_bytes;
    for (int l = 0; l < kLanes; ++l) {
      const float x_hat =
          Dequantize<kMidRiseCodes>(quant, q[t * kLanes + l]);
      const float v = LoadFloat(row, quant.dtype, l);
      if (!(std::fabs(v - x_hat) <= quant.eb)) return false;
      if (!(std::fabs(x_hat) < quant.limit)) return false;
    }
  }
  return true;
}

template <bool kMidRiseCodes>
uint16_t EncodeTile(const Quantizer& quant, const void* x,
                    const void* /*next*/, int64_t row_bytes, uint32_t* out,
                    TileSums* sums) {
  int16_t q[kTileValues];
  float sum[kLanes] = {}, sum_sq[kLanes] = {};
  int32_t nonzero = 0;
  bool coded = true, verify = quant.verify_all;
  for (int t = 0; t < kPixels; ++t) {
    const uint8_t* row = static_cast<const uint8_t*>(x) + t * row_bytes;
    for (int l = 0; l < kLanes; ++l) {
      const float v = LoadFloat(row, quant.dtype, l);
      int code = 0;
      coded &= Quantize<kMidRiseCodes>(quant, v, &code);
      verify |= code > 255 || code < -256;
      q[t * kLanes + l] = static_cast<int16_t>(code);
      nonzero += !IsZero(v);
      sum[l] += v;
      sum_sq[l] += v * v;
    }
  }
  *sums = FoldSums(nonzero, sum, sum_sq);
  if (!std::isfinite(sums->sum) || !std::isfinite(sums->sum_sq)) {
    *sums = PlainSums(quant.dtype, x, row_bytes);
  }
  if (!coded) return kRaw;
  if (verify && !WithinBound<kMidRiseCodes>(quant, x, row_bytes, q)) {
    return kRaw;
  }
  return PackTile(q, out);
}

template <bool kMidRiseCodes>
bool DecodeTile(const Quantizer& quant, uint16_t entry, const uint32_t* words,
                void* out, int64_t row_bytes) {
  int16_t q[kTileValues];
  if (!DecodeCodes(entry, words, q)) return false;
  for (int t = 0; t < kPixels; ++t) {
    uint8_t* row = static_cast<uint8_t*>(out) + t * row_bytes;
    for (int l = 0; l < kLanes; ++l) {
      StoreFloat(Dequantize<kMidRiseCodes>(quant, q[t * kLanes + l]),
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
  if (!((entry & kWide) ? UnpackWide(words, n_words, codes)
                        : UnpackNarrow(words, n_words, codes))) {
    return false;
  }
  for (int i = 0; i < kTileValues; ++i) {
    q[i] = (entry & kZigzag) ? Unzigzag(codes[i])
                             : static_cast<int16_t>(codes[i]);
  }
  if (entry & kDelta) {
    for (int i = kLanes; i < kTileValues; ++i) {
      q[i] = static_cast<int16_t>(q[i] + q[i - kLanes]);
    }
  }
  return true;
}

TileSums PlainSums(DType dtype, const void* x, int64_t row_bytes) {
  TileSums sums = {0, 0, 0};
  for (int t = 0; t < kPixels; ++t) {
    const uint8_t* row = static_cast<const uint8_t*>(x) + t * row_bytes;
    for (int l = 0; l < kLanes; ++l) {
      const float v = LoadFloat(row, dtype, l);
      if (!std::isfinite(v)) continue;
      sums.nonzero += !IsZero(v);
      sums.sum += v;
      sums.sum_sq += static_cast<double>(v) * v;
    }
  }
  return sums;
}

TileKernels ScalarKernels(DType /*dtype*/, bool mid_rise) {
  if (mid_rise) {
    return {EncodeTile<true>, DecodeTile<true>, MaskTile, ApplyMask};
  }
  return {EncodeTile<false>, DecodeTile<false>, MaskTile, ApplyMask};
}

}  // namespace plane
}  // namespace comptrain
