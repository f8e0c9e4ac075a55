// Internal: random bits for one stretch of a mask, one function for each
// instruction set. All draw the same bits.
#ifndef TF_COMPTRAIN_CC_CODEC_DROPOUT_KERNELS_H_
#define TF_COMPTRAIN_CC_CODEC_DROPOUT_KERNELS_H_

#include <cstdint>

#include "cc/codec/dropout.h"

namespace comptrain {

// A uniform number of a floating-point type is made of the low bits of a word,
// as many as its mantissa has: u >= rate where (word & low) >= threshold.
struct DrawParams {
  Philox philox;
  uint32_t low, threshold;
};

// Bytes of the mask that are drawn at a time, from two counters each.
constexpr int kDropoutBytes = 8;

// Bytes [first, first + bytes) of the mask; both are multiples of kDropoutBytes.
using DrawBits = void (*)(const DrawParams& params, int64_t first,
                          int64_t bytes, uint8_t* bits);

void DrawBitsScalar(const DrawParams& params, int64_t first, int64_t bytes,
                    uint8_t* bits);
// Null when not compiled for that set; says nothing about this machine.
DrawBits DrawBitsAvx2();
DrawBits DrawBitsAvx512();

constexpr int kPhiloxRounds = 10;
constexpr uint32_t kPhiloxA = 0xD2511F53u, kPhiloxB = 0xCD9E8D57u;
constexpr uint32_t kPhiloxKeyA = 0x9E3779B9u, kPhiloxKeyB = 0xBB67AE85u;

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_DROPOUT_KERNELS_H_
