#include "cc/codec/dropout_kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>

#include <cstring>

namespace comptrain {
namespace {

constexpr int kVectors = 4;  // worked on side by side

inline __m256i Xor(__m256i a, __m256i b, __m256i c) {
  return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}

// A word of a counter is the low half of a lane; what is in the high one is
// never looked at.
void Draw(const DrawParams& params, int64_t first, int64_t bytes,
          uint8_t* bits) {
  const Philox& p = params.philox;
  const __m256i factor_a = _mm256_set1_epi64x(kPhiloxA);
  const __m256i factor_b = _mm256_set1_epi64x(kPhiloxB);
  const __m256i low_bits = _mm256_set1_epi64x(params.low);
  const __m256i below = _mm256_set1_epi64x(static_cast<int64_t>(params.threshold) - 1);
  auto keep = [&](__m256i word) -> uint32_t {
    const __m256i kept =
        _mm256_cmpgt_epi64(_mm256_and_si256(word, low_bits), below);
    return static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(kept)));
  };
  for (int64_t done = 0; done < bytes; done += kDropoutBytes) {
    const uint64_t start = p.counter[0] + static_cast<uint64_t>(2 * (first + done));
    __m256i c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      uint64_t low[4], high[4];
      for (int l = 0; l < 4; ++l) {
        low[l] = start + static_cast<uint64_t>(4 * v + l);
        high[l] = p.counter[1] + (low[l] < p.counter[0]);
      }
      c0[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low));
      c1[v] = _mm256_srli_epi64(c0[v], 32);
      c2[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high));
      c3[v] = _mm256_srli_epi64(c2[v], 32);
    }
    uint32_t key_a = static_cast<uint32_t>(p.key);
    uint32_t key_b = static_cast<uint32_t>(p.key >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const __m256i ka = _mm256_set1_epi64x(key_a), kb = _mm256_set1_epi64x(key_b);
      for (int v = 0; v < kVectors; ++v) {
        const __m256i a = _mm256_mul_epu32(c0[v], factor_a);
        const __m256i b = _mm256_mul_epu32(c2[v], factor_b);
        c0[v] = Xor(_mm256_srli_epi64(b, 32), c1[v], ka);
        c1[v] = b;
        c2[v] = Xor(_mm256_srli_epi64(a, 32), c3[v], kb);
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
      packed |= kept << (16 * v);
    }
    std::memcpy(bits + done, &packed, sizeof packed);
  }
}

}  // namespace

DrawBits DrawBitsAvx2() { return Draw; }

}  // namespace comptrain

#else

namespace comptrain {
DrawBits DrawBitsAvx2() { return nullptr; }
}  // namespace comptrain

#endif
