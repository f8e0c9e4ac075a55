// Internal: the inner loops of pool.h over the channels of one pixel, one
// table for each instruction set. All tables give the same result.
#pragma once

#include <cstdint>

#include "cc/codec/common/isa.h"
#include "cc/codec/common/half.h"
#include "cc/codec/masks/pool.h"

namespace comptrain {

// One place of a window that falls on the input.
struct PoolOffset {
  int64_t element;    // elements after the first place
  uint32_t position;  // in the whole window, row-major
};

// Output pixels of one row whose windows meet the input alike.
struct PoolRun {
  const PoolOffset* offsets;  // all places, in order; at least one
  int64_t n_offsets;
  int64_t channels;
  int64_t pixels;
  int64_t step;  // elements of the input from one window to the next
};

// An output pixel whose window covers the input pixel at `position`.
struct PoolCover {
  const uint8_t* positions;  // where its maxima were, one a channel
  const void* dy;
  unsigned position;
};

// The first two are indexed by DType. Positions are bytes, or two bytes each
// in the table for windows of more than 256 positions.
struct PoolKernels {
  // x: the first place of the first window. y (may be null), positions:
  // pixels * channels.
  void (*index[3])(const void* x, const PoolRun& run, void* y,
                   uint8_t* positions);
  // dx[c] = sum of dy[c] over the covers whose maximum was here, in order.
  void (*gradient[3])(const PoolCover* covers, int64_t n_covers,
                      int64_t channels, void* dx);
  // n positions of 1, 2 or 4 bits to and from bytes; spare bits are zero.
  void (*pack)(const uint8_t* positions, int64_t n, int bits, uint8_t* packed);
  void (*unpack)(const uint8_t* packed, int64_t n, int bits,
                 uint8_t* positions);
};

COMPTRAIN_KERNEL_TABLES(PoolKernels)
// Two-byte positions; nothing to pack.
extern const PoolKernels kPoolKernelsWide;

// One call. The shape and the table outlive it.
struct PoolTask {
  const PoolKernels& kernels;
  DType dtype;
  const PoolShape& shape;
};

// MaxPoolIndex and MaxPoolGradient with a given table.
void MaxPoolIndexWith(const PoolTask& pool, const void* x, void* y,
                      uint8_t* index, const ParallelFor& parallel);
void MaxPoolGradientWith(const PoolTask& pool, const uint8_t* index,
                         const void* dy, void* dx, const ParallelFor& parallel);

// True when `v`, seen after `best`, is the new maximum: the first of equals
// and the first NaN stay.
COMPTRAIN_HD static inline bool PoolBeats(float v, float best) {
  return !(v <= best) && best == best;
}

// Position number c of an array of bytes or, unaligned, of byte pairs.
template <class P>
static inline unsigned LoadPosition(const uint8_t* positions, int64_t c) {
  P value;
  std::memcpy(&value, positions + c * sizeof(P), sizeof(P));
  return value;
}
template <class P>
static inline void StorePosition(unsigned position, uint8_t* positions,
                                 int64_t c) {
  const P value = static_cast<P>(position);
  std::memcpy(positions + c * sizeof(P), &value, sizeof(P));
}

// Channels [begin, end) of PoolKernels::index for one pixel.
template <class P, class T>
static inline void PoolIndexTail(const T* x, const PoolRun& run, int64_t begin,
                                 int64_t end, T* y, uint8_t* positions) {
  for (int64_t c = begin; c < end; ++c) {
    T best = x[c];
    unsigned where = run.offsets[0].position;
    for (int64_t i = 1; i < run.n_offsets; ++i) {
      const T v = x[run.offsets[i].element + c];
      if (!PoolBeats(ToFloat(v), ToFloat(best))) continue;
      best = v;
      where = run.offsets[i].position;
    }
    if (y != nullptr) y[c] = best;
    StorePosition<P>(where, positions, c);
  }
}

// Calls pixel(x, y, positions) for the pixels of a run. P: type of a position.
template <class P, class T, class F>
static inline void PoolForPixels(const void* x, const PoolRun& run, void* y,
                                 uint8_t* positions, const F& pixel) {
  const T* in = static_cast<const T*>(x);
  T* out = static_cast<T*>(y);
  for (int64_t p = 0; p < run.pixels; ++p) {
    pixel(in, out, positions);
    in += run.step;
    if (out != nullptr) out += run.channels;
    positions += run.channels * sizeof(P);
  }
}

// Channels [begin, channels) of PoolKernels::gradient. Under a single cover
// dy is copied, bit for bit.
template <class P, class T>
static inline void PoolGradientTail(const PoolCover* covers, int64_t n_covers,
                                    int64_t begin, int64_t channels, T* dx) {
  for (int64_t c = begin; c < channels; ++c) {
    T single = {};
    float sum = 0;
    for (int64_t i = 0; i < n_covers; ++i) {
      const PoolCover& cover = covers[i];
      if (LoadPosition<P>(cover.positions, c) != cover.position) continue;
      single = static_cast<const T*>(cover.dy)[c];
      sum += ToFloat(single);
    }
    if (n_covers > 1) FromFloat(sum, &single);
    dx[c] = single;
  }
}

static inline void PoolPackTail(const uint8_t* positions, int64_t n, int bits,
                                uint8_t* packed) {
  const int per_byte = 8 / bits;
  for (int64_t i = 0; i < n; i += per_byte) {
    unsigned byte = 0;
    for (int j = 0; j < per_byte && i + j < n; ++j) {
      byte |= static_cast<unsigned>(positions[i + j]) << (j * bits);
    }
    *packed++ = static_cast<uint8_t>(byte);
  }
}

static inline void PoolUnpackTail(const uint8_t* packed, int64_t n, int bits,
                                  uint8_t* positions) {
  const int per_byte = 8 / bits;
  const unsigned mask = (1u << bits) - 1;
  for (int64_t i = 0; i < n; ++i) {
    const unsigned shift = static_cast<unsigned>(i % per_byte * bits);
    positions[i] = static_cast<uint8_t>((packed[i / per_byte] >> shift) & mask);
  }
}

}  // namespace comptrain
