// Internal: the kernels as loops that compilers make vectors of. Each source
// that includes this is compiled for another instruction set.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstring>

#include "cc/codec/common/half.h"
#include "cc/codec/fixed_rate/dither.h"
#include "cc/codec/fixed_rate/kernels.h"
#include "cc/codec/stream/quantize.h"

namespace comptrain {

static void Dither(uint32_t number, int64_t n, uint32_t more,
                   uint32_t* __restrict__ out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = DitherStart(number + static_cast<uint32_t>(i)) + more;
  }
}

// In integers, as compilers make no vectors of a comparison of floats that
// could be left out.
static inline uint32_t MaskOf(bool all) {
  return 0u - static_cast<uint32_t>(all);
}

template <bool kMidRise, bool kCentres>
static void CodesOfKind(const FixedRateCoding& coding, const Stretch& at,
                        const float* __restrict__ x,
                        uint32_t* __restrict__ codes) {
  const float zero = coding.zero_level(), least = kMidRise ? 1.0f : 0.0f;
  const float last = coding.last_code(), of_nan = coding.code_of_nan();
  const uint32_t mask = coding.last_code();
  const uint32_t* __restrict__ dither = at.dither;
  const float* __restrict__ factor = at.factor;
  const float* __restrict__ centre = at.centre;
  for (int64_t i = 0; i < at.n; ++i) {
    const float v = kCentres ? x[i] - centre[i] : x[i];
    float level = v * factor[i] + DitherPlus(zero, dither[i] + at.more);
    level = level == level ? level : of_nan;
    level = level < least ? least : level;
    level = level > last ? last : level;
    // Rounded by an addition that leaves no bits below the point.
    const uint32_t code = FloatBits(level + 0x1p23f) & mask;
    codes[i] = kMidRise ? code & MaskOf(!CountsAsZero(x[i])) : code;
  }
}

static void CodesOf(const FixedRateCoding& coding, const Stretch& at,
                    const float* x, uint32_t* codes) {
  const auto of_kind = coding.mid_rise        ? CodesOfKind<true, false>
                       : at.centre != nullptr ? CodesOfKind<false, true>
                                              : CodesOfKind<false, false>;
  of_kind(coding, at, x, codes);
}

template <bool kMidRise, bool kCentres>
static void ValuesOfKind(const FixedRateCoding& coding, const Stretch& at,
                         const uint32_t* __restrict__ codes,
                         float* __restrict__ x) {
  const float zero = coding.zero_level();
  const uint32_t* __restrict__ dither = at.dither;
  const float* __restrict__ factor = at.factor;
  const float* __restrict__ centre = at.centre;
  for (int64_t i = 0; i < at.n; ++i) {
    const auto code = static_cast<float>(static_cast<int32_t>(codes[i]));
    const float v = (code - DitherPlus(zero, dither[i] + at.more)) * factor[i];
    if (kMidRise) {
      x[i] = BitsFloat(FloatBits(v) & MaskOf(codes[i] != 0));
    } else {
      x[i] = kCentres ? v + centre[i] : v;
    }
  }
}

static void ValuesOf(const FixedRateCoding& coding, const Stretch& at,
                     const uint32_t* codes, float* x) {
  const auto of_kind = coding.mid_rise        ? ValuesOfKind<true, false>
                       : at.centre != nullptr ? ValuesOfKind<false, true>
                                              : ValuesOfKind<false, false>;
  of_kind(coding, at, codes, x);
}

// With constants for the bits. Rows of fewer than kShort are taken word after
// word, since none of theirs fills a vector.
constexpr int kShort = 8;

template <int kBits>
static inline uint32_t WordOf(const uint32_t* __restrict__ codes, int64_t apart,
                              int w) {
  constexpr int kCodes = 32 / kBits, kSpare = 32 % kBits;
  const uint32_t* __restrict__ left = codes + kBits * kCodes * apart;
  uint32_t word = 0;
  for (int k = 0; k < kCodes; ++k) {
    word |= codes[(w * kCodes + k) * apart] << (k * kBits);
  }
  for (int k = 0; k < kSpare; ++k) {
    word |= (left[k * apart] >> w & 1) << (kCodes * kBits + k);
  }
  return word;
}

template <int kBits>
static void PackBits(const uint32_t* __restrict__ codes, int64_t apart,
                     int64_t n, uint32_t* __restrict__ words, int64_t row) {
  if (n < kShort) {
    for (int64_t i = 0; i < n; ++i) {
      for (int w = 0; w < kBits; ++w) {
        words[w * row + i] = WordOf<kBits>(codes + i, apart, w);
      }
    }
    return;
  }
  for (int w = 0; w < kBits; ++w) {
    uint32_t* __restrict__ out = words + w * row;
    for (int64_t i = 0; i < n; ++i) out[i] = WordOf<kBits>(codes + i, apart, w);
  }
}

template <int kBits>
static void UnpackBits(const uint32_t* __restrict__ words, int64_t row,
                       int64_t n, uint32_t* __restrict__ codes, int64_t apart) {
  constexpr int kCodes = 32 / kBits, kSpare = 32 % kBits;
  constexpr uint32_t kMask = (1u << kBits) - 1;
  uint32_t* __restrict__ left = codes + kBits * kCodes * apart;
  if (n < kShort) {
    for (int64_t i = 0; i < n; ++i) {
      uint32_t spare[kSpare + 1] = {};
      for (int w = 0; w < kBits; ++w) {
        const uint32_t word = words[w * row + i];
        for (int k = 0; k < kCodes; ++k) {
          codes[(w * kCodes + k) * apart + i] = word >> (k * kBits) & kMask;
        }
        for (int k = 0; k < kSpare; ++k) {
          spare[k] |= (word >> (kCodes * kBits + k) & 1) << w;
        }
      }
      for (int k = 0; k < kSpare; ++k) left[k * apart + i] = spare[k];
    }
    return;
  }
  for (int k = 0; k < kSpare; ++k) {
    std::memset(left + k * apart, 0, n * sizeof *left);
  }
  for (int w = 0; w < kBits; ++w) {
    const uint32_t* __restrict__ in = words + w * row;
    for (int k = 0; k < kCodes; ++k) {
      uint32_t* __restrict__ out = codes + (w * kCodes + k) * apart;
      for (int64_t i = 0; i < n; ++i) out[i] = in[i] >> (k * kBits) & kMask;
    }
    for (int k = 0; k < kSpare; ++k) {
      uint32_t* __restrict__ out = left + k * apart;
      for (int64_t i = 0; i < n; ++i) {
        out[i] |= (in[i] >> (kCodes * kBits + k) & 1) << w;
      }
    }
  }
}

static void Pack(const FixedRateCoding& coding, const uint32_t* codes,
                 int64_t apart, int64_t n, uint32_t* words, int64_t row) {
  constexpr decltype(&PackBits<2>) kOfBits[] = {
      PackBits<2>, PackBits<3>, PackBits<4>, PackBits<5>,
      PackBits<6>, PackBits<7>, PackBits<8>};
  kOfBits[coding.bits - 2](codes, apart, n, words, row);
}

static void Unpack(const FixedRateCoding& coding, const uint32_t* words,
                   int64_t row, int64_t n, uint32_t* codes, int64_t apart) {
  constexpr decltype(&UnpackBits<2>) kOfBits[] = {
      UnpackBits<2>, UnpackBits<3>, UnpackBits<4>, UnpackBits<5>,
      UnpackBits<6>, UnpackBits<7>, UnpackBits<8>};
  kOfBits[coding.bits - 2](words, row, n, codes, apart);
}

static void EndsOf(const float* __restrict__ x, int64_t n,
                   float* __restrict__ smallest, float* __restrict__ largest) {
  for (int64_t i = 0; i < n; ++i) {
    const bool finite = std::fabs(x[i]) <= FLT_MAX;
    const float low = finite ? x[i] : FLT_MAX, high = finite ? x[i] : -FLT_MAX;
    smallest[i] = low < smallest[i] ? low : smallest[i];
    largest[i] = high > largest[i] ? high : largest[i];
  }
}

static void LookUp(const uint8_t* __restrict__ scales, int64_t n,
                   const float* __restrict__ table,
                   float* __restrict__ factors) {
  for (int64_t i = 0; i < n; ++i) factors[i] = table[scales[i]];
}

static void Widen(const void* x, DType dtype, int64_t n,
                  float* __restrict__ out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, x, n * sizeof *out);
    return;
  }
  const auto* __restrict__ in = static_cast<const uint16_t*>(x);
  if (dtype == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) out[i] = BF16ToFloat(in[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = F16ToFloat(in[i]);
  }
}

template <class T>
static void SelectItems(const uint32_t* __restrict__ codes, int64_t n,
                        const void* from, void* to) {
  const T* const in = static_cast<const T*>(from);
  T* const out = static_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) out[i] = codes[i] == 0 ? T{0} : in[i];
}

static void Select(const uint32_t* codes, int64_t n, int64_t item,
                   const void* from, void* to) {
  const auto of_item =
      item == 2 ? SelectItems<uint16_t> : SelectItems<uint32_t>;
  of_item(codes, n, from, to);
}

static void Narrow(const float* __restrict__ x, int64_t n, DType dtype,
                   void* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, x, n * sizeof *x);
    return;
  }
  auto* __restrict__ to = static_cast<uint16_t*>(out);
  if (dtype == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) to[i] = FloatToBF16(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = FloatToF16(x[i]);
  }
}

static constexpr FixedRateKernels kFixedRateKernelsHere = {
    Dither, CodesOf, ValuesOf, Pack,   Unpack,
    EndsOf, LookUp,  Widen,    Select, Narrow};

}  // namespace comptrain
