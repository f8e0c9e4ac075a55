// Masks and pooling as functions of an item's number, an item a GPU thread. T:
// float, BF16 or F16.
#pragma once

#include <cmath>
#include <cstdint>

#include "cc/codec/common/divisor.h"
#include "cc/codec/common/half.h"
#include "cc/codec/common/host_device.h"
#include "cc/codec/masks/bitmask_kernels.h"
#include "cc/codec/masks/pool_kernels.h"

namespace comptrain {

// Item: a byte of the mask.
template <class T>
struct PackBits {
  const T* x;
  int64_t n;
  float lower, upper;
  uint8_t* bits;

  COMPTRAIN_HD void operator()(int64_t byte) const {
    unsigned packed = 0;
    COMPTRAIN_UNROLL
    for (int j = 0; j < 8; ++j) {
      if (8 * byte + j >= n) continue;
      const float v = ToFloat(x[8 * byte + j]);
      packed |= static_cast<unsigned>(lower < v && v < upper) << j;
    }
    bits[byte] = static_cast<uint8_t>(packed);
  }
};

// Item: an element.
template <class T>
struct ApplyBits {
  const uint8_t* bits;
  float on, off;
  const T* dy;
  T* dx;

  COMPTRAIN_HD void operator()(int64_t i) const {
    const bool set = bits[i / 8] >> (i % 8) & 1;
    const float factor = set ? on : off;
    dx[i] = set || off != 0.0f ? ScaleScalar(dy[i], factor) : T{};
  }
};

// The place of an element in a tensor of pixels, channels last.
struct Place {
  int64_t batch, at[3], channel;
};

// What finds places.
struct Places {
  Divisor channels, size[3];

  Places(int64_t channels, const int64_t size[3])
      : channels(channels),
        size{Divisor(size[0]), Divisor(size[1]), Divisor(size[2])} {}
  COMPTRAIN_HD Place Of(int64_t element) const {
    Place p;
    p.batch = channels.Split(element, &p.channel);
    COMPTRAIN_UNROLL
    for (int d = 2; d >= 0; --d) p.batch = size[d].Split(p.batch, &p.at[d]);
    return p;
  }
};

// The number of a pixel, where images have size[0] x size[1] x size[2]
// pixels.
COMPTRAIN_HD static inline int64_t PixelAt(int64_t batch, int64_t a, int64_t b,
                                           int64_t c, const int64_t size[3]) {
  return ((batch * size[0] + a) * size[1] + b) * size[2] + c;
}

// Item: a byte of the index, or with 16 bits a position.
template <class T>
struct PoolMaxima {
  PoolShape s;
  int bits;          // PoolIndexBits(s)
  int64_t elements;  // of y
  const T* x;
  T* y;
  uint8_t* index;
  Places outputs{s.channels, s.out_size};

  COMPTRAIN_HD void operator()(int64_t item) const {
    if (bits == 16) {
      const unsigned position = Maximum(item);
      index[2 * item] = static_cast<uint8_t>(position);
      index[2 * item + 1] = static_cast<uint8_t>(position >> 8);
      return;
    }
    const int per_byte = 8 / bits;
    unsigned byte = 0;
    for (int j = 0; j < per_byte && item * per_byte + j < elements; ++j) {
      byte |= Maximum(item * per_byte + j) << (j * bits);
    }
    index[item] = static_cast<uint8_t>(byte);
  }

 private:
  COMPTRAIN_HD unsigned Maximum(int64_t element) const {
    const Place o = outputs.Of(element);
    int64_t start[3];
    for (int d = 0; d < 3; ++d)
      start[d] = o.at[d] * s.stride[d] - s.pad_before[d];
    T best = {};
    bool found = false;
    unsigned where = 0;
    for (int64_t i = 0; i < s.window[0]; ++i) {
      if (!Inside(0, start[0] + i)) continue;
      for (int64_t j = 0; j < s.window[1]; ++j) {
        if (!Inside(1, start[1] + j)) continue;
        for (int64_t k = 0; k < s.window[2]; ++k) {
          if (!Inside(2, start[2] + k)) continue;
          const T v = x[PixelAt(o.batch, start[0] + i, start[1] + j,
                                start[2] + k, s.in_size) *
                            s.channels +
                        o.channel];
          if (found && !PoolBeats(ToFloat(v), ToFloat(best))) continue;
          found = true;
          best = v;
          where =
              static_cast<unsigned>((i * s.window[1] + j) * s.window[2] + k);
        }
      }
    }
    if (!found) FromFloat(-INFINITY, &best);
    y[element] = best;
    return where;
  }
  COMPTRAIN_HD bool Inside(int d, int64_t at) const {
    return at >= 0 && at < s.in_size[d];
  }
};

// Item: an element of dx.
template <class T>
struct PoolScatter {
  PoolShape s;
  int bits;
  const uint8_t* index;
  const T* dy;
  T* dx;
  Places inputs{s.channels, s.in_size};
  Divisor stride[3] = {Divisor(s.stride[0]), Divisor(s.stride[1]),
                       Divisor(s.stride[2])};

  COMPTRAIN_HD void operator()(int64_t element) const {
    const Place in = inputs.Of(element);
    int64_t first[3], last[3];  // outputs whose windows cover it
    int64_t covers = 1;
    for (int d = 0; d < 3; ++d) {
      const int64_t p = in.at[d] + s.pad_before[d];
      const int64_t past = p - s.window[d] + 1;
      first[d] = past <= 0 ? 0 : stride[d].Quotient(past + s.stride[d] - 1);
      last[d] = stride[d].Quotient(p);
      if (last[d] >= s.out_size[d]) last[d] = s.out_size[d] - 1;
      covers *= last[d] < first[d] ? 0 : last[d] - first[d] + 1;
    }
    T single = {};
    float sum = 0;
    for (int64_t i = first[0]; i <= last[0]; ++i) {
      for (int64_t j = first[1]; j <= last[1]; ++j) {
        for (int64_t k = first[2]; k <= last[2]; ++k) {
          const int64_t from =
              PixelAt(in.batch, i, j, k, s.out_size) * s.channels + in.channel;
          const int64_t position =
              (Offset(in, 0, i) * s.window[1] + Offset(in, 1, j)) *
                  s.window[2] +
              Offset(in, 2, k);
          if (Position(from) != position) continue;
          single = dy[from];
          sum += ToFloat(single);
        }
      }
    }
    if (covers > 1) FromFloat(sum, &single);  // one alone is passed bit for bit
    dx[element] = single;
  }

 private:
  COMPTRAIN_HD int64_t Offset(const Place& in, int d, int64_t out) const {
    return in.at[d] - (out * s.stride[d] - s.pad_before[d]);
  }
  COMPTRAIN_HD int64_t Position(int64_t element) const {
    if (bits == 16) return index[2 * element] | index[2 * element + 1] << 8;
    const int64_t bit = element * bits;
    return index[bit / 8] >> (bit % 8) & ((1 << bits) - 1);
  }
};

}  // namespace comptrain
