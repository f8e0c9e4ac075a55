// Internal: stretches of values of a stream of a fixed rate, one function for
// each instruction set. All give the same bits.
#pragma once

#include <cstdint>

#include "cc/codec/common/dtype.h"
#include "cc/codec/common/isa.h"
#include "cc/codec/fixed_rate/layout.h"

namespace comptrain {

// Values of one row that are worked on at a time: those of all members of their
// groups are in a first-level cache.
constexpr int kStretch = 256;

// Values that lie side by side.
struct Stretch {
  int64_t n;
  const uint32_t* dither;  // of each: DitherStart, or more
  uint32_t more;           // what the dither of all has beyond that
  const float* factor;     // of each: its step, or 1 / its step
  const float* centre;     // of each; null: none has one
};

struct FixedRateKernels {
  // DitherStart of n numbers, and more.
  void (*dither)(uint32_t number, int64_t n, uint32_t more, uint32_t* out);
  void (*codes)(const FixedRateCoding& coding, const Stretch& at,
                const float* x, uint32_t* codes);
  void (*values)(const FixedRateCoding& coding, const Stretch& at,
                 const uint32_t* codes, float* x);
  // codes: kPacked rows, `apart` codes apart. words: `bits` rows, `row` words
  // apart. n of each row.
  void (*pack)(const FixedRateCoding& coding, const uint32_t* codes,
               int64_t apart, int64_t n, uint32_t* words, int64_t row);
  void (*unpack)(const FixedRateCoding& coding, const uint32_t* words,
                 int64_t row, int64_t n, uint32_t* codes, int64_t apart);
  // Lowers and raises ends by the finite ones of n values.
  void (*ends)(const float* x, int64_t n, float* smallest, float* largest);
  void (*look_up)(const uint8_t* scales, int64_t n, const float* table,
                  float* factors);
  void (*widen)(const void* x, DType dtype, int64_t n, float* out);
  // Items of 2 or 4 bytes where codes are not 0, else zeros.
  void (*select)(const uint32_t* codes, int64_t n, int64_t item,
                 const void* from, void* to);
  void (*narrow)(const float* x, int64_t n, DType dtype, void* out);
};
COMPTRAIN_KERNEL_TABLES(FixedRateKernels)

}  // namespace comptrain
