// Internal: random bits for one stretch of a mask, one function for each
// instruction set. All draw the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/codec/common/isa.h"
#include "cc/codec/dropout/dropout.h"

namespace comptrain {

// A uniform number of a floating-point type is made of the low bits of a word,
// as many as its mantissa has: u >= rate where (word & low) >= threshold.
struct DrawParams {
  Philox philox;
  uint32_t low, threshold;
};

// Bytes of the mask that are drawn at a time, from two counters each.
constexpr int kDropoutBytes = 8;

// Bytes [first, first + bytes) of the mask; both are multiples of
// kDropoutBytes.
struct DropoutKernels {
  void (*draw)(const DrawParams& params, int64_t first, int64_t bytes,
               uint8_t* bits);
};
COMPTRAIN_KERNEL_TABLES(DropoutKernels)

constexpr int kPhiloxRounds = 10;
constexpr uint32_t kPhiloxA = 0xD2511F53u, kPhiloxB = 0xCD9E8D57u;
constexpr uint32_t kPhiloxKeyA = 0x9E3779B9u, kPhiloxKeyB = 0xBB67AE85u;

// DrawBits for V, a vector type: V::Words of V::kWidth 64-bit lanes, with
// V::All(uint64_t), V::Load(const uint64_t*), V::High(Words), the upper half of
// each lane, V::Times(Words, Words), of lower halves, V::Xor of three, V::And,
// V::Greater(Words, Words), a bit a lane, signed, and V::Spread(bits, k): bit i
// to bit 4 i + k. A word of a counter is the lower half of a lane; what is in
// the upper one is never looked at.
template <class V>
static void DrawBitsOf(const DrawParams& params, int64_t first, int64_t bytes,
                       uint8_t* bits) {
  using Words = typename V::Words;
  // Worked on side by side.
  constexpr int kVectors = 2 * kDropoutBytes / V::kWidth;
  const Philox& p = params.philox;
  const Words factor_a = V::All(kPhiloxA), factor_b = V::All(kPhiloxB);
  const Words low_bits = V::All(params.low);
  const Words below = V::All(static_cast<uint64_t>(params.threshold) - 1);
  const auto kept = [&](Words word, int of_block) {
    return V::Spread(V::Greater(V::And(word, low_bits), below), of_block);
  };
  for (int64_t done = 0; done < bytes; done += kDropoutBytes) {
    const uint64_t start =
        p.counter[0] + static_cast<uint64_t>(2 * (first + done));
    Words c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      uint64_t low[V::kWidth], high[V::kWidth];
      for (int l = 0; l < V::kWidth; ++l) {
        low[l] = start + static_cast<uint64_t>(V::kWidth * v + l);
        high[l] = p.counter[1] + (low[l] < p.counter[0]);
      }
      c0[v] = V::Load(low);
      c1[v] = V::High(c0[v]);
      c2[v] = V::Load(high);
      c3[v] = V::High(c2[v]);
    }
    uint32_t key_a = static_cast<uint32_t>(p.key);
    uint32_t key_b = static_cast<uint32_t>(p.key >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const Words ka = V::All(key_a), kb = V::All(key_b);
      for (int v = 0; v < kVectors; ++v) {
        const Words a = V::Times(c0[v], factor_a);
        const Words b = V::Times(c2[v], factor_b);
        c0[v] = V::Xor(V::High(b), c1[v], ka);
        c1[v] = b;
        c2[v] = V::Xor(V::High(a), c3[v], kb);
        c3[v] = a;
      }
      key_a += kPhiloxKeyA;
      key_b += kPhiloxKeyB;
    }
    uint64_t packed = 0;
    for (int v = 0; v < kVectors; ++v) {
      const uint64_t of_vector =
          kept(c0[v], 0) | kept(c1[v], 1) | kept(c2[v], 2) | kept(c3[v], 3);
      packed |= of_vector << (4 * V::kWidth * v);
    }
    std::memcpy(bits + done, &packed, sizeof packed);
  }
}

}  // namespace comptrain
