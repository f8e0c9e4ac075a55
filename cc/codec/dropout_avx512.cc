#include "cc/codec/dropout_kernels.h"

#if defined(__AVX512VBMI2__)
#include <immintrin.h>

#include <cstring>

namespace comptrain {
namespace {

constexpr int kVectors = 2;  // worked on side by side

inline __m512i Xor(__m512i a, __m512i b, __m512i c) {
  return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}

// GCC takes an operand that the plain intrinsics do not use for uninitialized.
inline __m512i High(__m512i a) { return _mm512_maskz_srli_epi64(0xff, a, 32); }
inline __m512i Times(__m512i a, __m512i b) {
  return _mm512_maskz_mul_epu32(0xff, a, b);
}

// A word of a counter is the low half of a lane; what is in the high one is
// never looked at.
void Draw(const DrawParams& params, int64_t first, int64_t bytes,
          uint8_t* bits) {
  const Philox& p = params.philox;
  const __m512i factor_a = _mm512_set1_epi64(kPhiloxA);
  const __m512i factor_b = _mm512_set1_epi64(kPhiloxB);
  const __m512i low_bits = _mm512_set1_epi64(params.low);
  const __m512i threshold = _mm512_set1_epi64(params.threshold);
  auto keep = [&](__m512i word) -> uint32_t {
    return _mm512_cmpge_epu64_mask(_mm512_and_si512(word, low_bits), threshold);
  };
  for (int64_t done = 0; done < bytes; done += kDropoutBytes) {
    const uint64_t start = p.counter[0] + static_cast<uint64_t>(2 * (first + done));
    __m512i c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      uint64_t low[8], high[8];
      for (int l = 0; l < 8; ++l) {
        low[l] = start + static_cast<uint64_t>(8 * v + l);
        high[l] = p.counter[1] + (low[l] < p.counter[0]);
      }
      c0[v] = _mm512_loadu_si512(low);
      c1[v] = High(c0[v]);
      c2[v] = _mm512_loadu_si512(high);
      c3[v] = High(c2[v]);
    }
    uint32_t key_a = static_cast<uint32_t>(p.key);
    uint32_t key_b = static_cast<uint32_t>(p.key >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const __m512i ka = _mm512_set1_epi64(key_a), kb = _mm512_set1_epi64(key_b);
      for (int v = 0; v < kVectors; ++v) {
        const __m512i a = Times(c0[v], factor_a);
        const __m512i b = Times(c2[v], factor_b);
        c0[v] = Xor(High(b), c1[v], ka);
        c1[v] = b;
        c2[v] = Xor(High(a), c3[v], kb);
        c3[v] = a;
      }
      key_a += kPhiloxKeyA;
      key_b += kPhiloxKeyB;
    }
    uint64_t packed = 0;
    for (int v = 0; v < kVectors; ++v) {
      // Bit l of each word's mask goes to bits 4 l and on.
      const uint64_t kept =
          _pdep_u32(keep(c0[v]), 0x11111111u) |
          _pdep_u32(keep(c1[v]), 0x22222222u) |
          _pdep_u32(keep(c2[v]), 0x44444444u) |
          _pdep_u32(keep(c3[v]), 0x88888888u);
      packed |= kept << (32 * v);
    }
    std::memcpy(bits + done, &packed, sizeof packed);
  }
}

}  // namespace

DrawBits DrawBitsAvx512() { return Draw; }

}  // namespace comptrain

#else

namespace comptrain {
DrawBits DrawBitsAvx512() { return nullptr; }
}  // namespace comptrain

#endif
