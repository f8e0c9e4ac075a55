// Masks and pooling as functions of an item's number, an item a GPU thread. T:
// float, BF16 or F16.
#pragma once

#include <cmath>
#include <cstdint>

#include "cc/codec/common/divisor.h"
#include "cc/codec/common/half.h"
#include "cc/codec/common/host_device.h"
#include "cc/codec/masks/bitmask_kernels.h"
#include "cc/codec/masks/pool.h"
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
template <class Index>
struct Place {
  Index batch, at[3], channel;
};

// A tensor of pixels. Index: int32_t where it has fewer than 2^31 elements, so
// that a GPU finds places in a few instructions; else int64_t.
template <class Index>
struct Pixels {
  Index size[3], channels;
  Divisor by_channels, by_size[3];

  Pixels(int64_t channels, const int64_t of[3])
      : size{static_cast<Index>(of[0]), static_cast<Index>(of[1]),
             static_cast<Index>(of[2])},
        channels(static_cast<Index>(channels)),
        by_channels(channels),
        by_size{Divisor(of[0]), Divisor(of[1]), Divisor(of[2])} {}

  COMPTRAIN_HD static Index Quotient(const Divisor& by, Index n) {
    if constexpr (sizeof(Index) == 4) {
      return static_cast<Index>(by.Small(static_cast<uint32_t>(n)));
    }
    return static_cast<Index>(by.Quotient(n));
  }
  COMPTRAIN_HD Place<Index> Of(Index element) const {
    Place<Index> p;
    p.batch = Quotient(by_channels, element);
    p.channel = element - p.batch * channels;
    COMPTRAIN_UNROLL
    for (int d = 2; d >= 0; --d) {
      const Index outside = Quotient(by_size[d], p.batch);
      p.at[d] = p.batch - outside * size[d];
      p.batch = outside;
    }
    return p;
  }
  COMPTRAIN_HD Index ElementAt(Index batch, const Index at[3],
                               Index channel) const {
    const Index row = (batch * size[0] + at[0]) * size[1] + at[1];
    return (row * size[2] + at[2]) * channels + channel;
  }
  COMPTRAIN_HD bool Has(int d, Index at) const {
    return at >= 0 && at < size[d];
  }
};

// Of a pooling, in each dimension.
template <class Index>
struct Window {
  Index size[3], stride[3], pad[3];

  explicit Window(const PoolShape& s) {
    for (int d = 0; d < 3; ++d) {
      size[d] = static_cast<Index>(s.window[d]);
      stride[d] = static_cast<Index>(s.stride[d]);
      pad[d] = static_cast<Index>(s.pad_before[d]);
    }
  }
};

// Neighbouring channels, which a thread loads or stores at once where it can.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Channels {
  T of[kCount];

  COMPTRAIN_HD static Channels From(const T* x) {
    return *reinterpret_cast<const Channels*>(x);
  }
  COMPTRAIN_HD void To(T* x) const { *reinterpret_cast<Channels*>(x) = *this; }
};

// Channels that have whole bytes of an index of any size of position but one
// bit, where they are a multiple of that.
constexpr int kPoolChannels = 4;

// Item: a byte of the index, or with 16 bits a position; its maxima. kWide:
// kPoolChannels positions instead, where there are whole bytes of them.
template <class T, class Index, bool kWide>
struct PoolMaxima {
  int bits;        // PoolIndexBits
  Index elements;  // of y
  const T* x;
  T* y;
  uint8_t* index;
  Window<Index> window;
  Pixels<Index> inputs, outputs;

  PoolMaxima(const PoolShape& s, int64_t elements_of_y, const T* x, T* y,
             uint8_t* index)
      : bits(PoolIndexBits(s)),
        elements(static_cast<Index>(elements_of_y)),
        x(x),
        y(y),
        index(index),
        window(s),
        inputs(s.channels, s.in_size),
        outputs(s.channels, s.out_size) {}

  COMPTRAIN_HD void operator()(int64_t i) const {
    const auto item = static_cast<Index>(i);
    if constexpr (kWide) return Positions(item);
    switch (bits) {
      case 1:
        return Byte<8>(item);
      case 2:
        return Byte<4>(item);
      case 4:
        return Byte<2>(item);
      case 8:
        return Byte<1>(item);
    }
    unsigned position[1];
    Maxima<1>(outputs.Of(item), item, position);
    index[2 * i] = static_cast<uint8_t>(position[0]);
    index[2 * i + 1] = static_cast<uint8_t>(position[0] >> 8);
  }

 private:
  COMPTRAIN_HD void Positions(Index item) const {
    const Index first = item * kPoolChannels;
    unsigned positions[kPoolChannels] = {};
    Maxima<kPoolChannels>(outputs.Of(first), first, positions);
    uint64_t packed = 0;
    COMPTRAIN_UNROLL
    for (int j = 0; j < kPoolChannels; ++j) {
      packed |= uint64_t{positions[j]} << (j * bits);
    }
    const int bytes = kPoolChannels * bits / 8;
    uint8_t* const to = index + int64_t{item} * bytes;
    for (int b = 0; b < bytes; ++b) {
      to[b] = static_cast<uint8_t>(packed >> (8 * b));
    }
  }

  template <int kCount>
  COMPTRAIN_HD void Byte(Index item) const {
    const Index first = item * kCount;
    const Place<Index> o = outputs.Of(first);
    unsigned positions[kCount] = {};
    if (o.channel + kCount <= outputs.channels) {
      Maxima<kCount>(o, first, positions);
    } else {
      COMPTRAIN_UNROLL
      for (int j = 0; j < kCount; ++j) {
        if (j < elements - first) {
          Maxima<1>(outputs.Of(first + j), first + j, &positions[j]);
        }
      }
    }
    unsigned byte = 0;
    COMPTRAIN_UNROLL
    for (int j = 0; j < kCount; ++j) byte |= positions[j] << (j * 8 / kCount);
    index[item] = static_cast<uint8_t>(byte);
  }

  // Of kCount neighbouring channels.
  template <int kCount>
  COMPTRAIN_HD void Maxima(const Place<Index>& o, Index element,
                           unsigned* positions) const {
    Index at[3];
    T best[kCount] = {};
    bool found = false;
    unsigned where = 0;
    for (Index i = 0; i < window.size[0]; ++i) {
      at[0] = o.at[0] * window.stride[0] - window.pad[0] + i;
      for (Index j = 0; j < window.size[1]; ++j) {
        at[1] = o.at[1] * window.stride[1] - window.pad[1] + j;
        for (Index k = 0; k < window.size[2]; ++k, ++where) {
          at[2] = o.at[2] * window.stride[2] - window.pad[2] + k;
          if (!inputs.Has(0, at[0]) || !inputs.Has(1, at[1]) ||
              !inputs.Has(2, at[2])) {
            continue;
          }
          const T* const from = x + inputs.ElementAt(o.batch, at, o.channel);
          const auto values = Load<kCount>(from);
          COMPTRAIN_UNROLL
          for (int n = 0; n < kCount; ++n) {
            const T v = values.of[n];
            const bool stays =
                found && !PoolBeats(ToFloat(v), ToFloat(best[n]));
            best[n] = stays ? best[n] : v;
            positions[n] = stays ? positions[n] : where;
          }
          found = true;
        }
      }
    }
    Channels<T, kCount> maxima;
    COMPTRAIN_UNROLL
    for (int n = 0; n < kCount; ++n) {
      if (!found) {
        FromFloat(-INFINITY, &best[n]);
        positions[n] = 0;
      }
      maxima.of[n] = best[n];
    }
    if constexpr (kWide) return maxima.To(y + element);
    COMPTRAIN_UNROLL
    for (int n = 0; n < kCount; ++n) y[element + n] = maxima.of[n];
  }
  template <int kCount>
  COMPTRAIN_HD static Channels<T, kCount> Load(const T* from) {
    if constexpr (kWide) return Channels<T, kCount>::From(from);
    Channels<T, kCount> values;
    COMPTRAIN_UNROLL
    for (int n = 0; n < kCount; ++n) values.of[n] = from[n];
    return values;
  }
};

// Item: kCount elements of dx of neighbouring channels, which are a multiple of
// that: 1 or kPoolChannels.
template <class T, class Index, int kCount>
struct PoolScatter {
  int bits;
  const uint8_t* index;
  const T* dy;
  T* dx;
  Window<Index> window;
  Pixels<Index> inputs, outputs;
  Divisor by_stride[3];

  PoolScatter(const PoolShape& s, const uint8_t* index, const T* dy, T* dx)
      : bits(PoolIndexBits(s)),
        index(index),
        dy(dy),
        dx(dx),
        window(s),
        inputs(s.channels, s.in_size),
        outputs(s.channels, s.out_size),
        by_stride{Divisor(s.stride[0]), Divisor(s.stride[1]),
                  Divisor(s.stride[2])} {}

  COMPTRAIN_HD void operator()(int64_t item) const {
    const Place<Index> in = inputs.Of(static_cast<Index>(item * kCount));
    Index first[3], last[3];  // outputs whose windows cover it
    Index covers = 1;
    COMPTRAIN_UNROLL
    for (int d = 0; d < 3; ++d) {
      const Index p = in.at[d] + window.pad[d];
      const Index past = p - window.size[d] + window.stride[d];
      first[d] = past <= 0 ? 0 : inputs.Quotient(by_stride[d], past);
      last[d] = inputs.Quotient(by_stride[d], p);
      if (last[d] >= outputs.size[d]) last[d] = outputs.size[d] - 1;
      covers *= last[d] < first[d] ? 0 : last[d] - first[d] + 1;
    }
    Channels<T, kCount> single = {};
    float sum[kCount] = {};
    Index out[3];
    for (out[0] = first[0]; out[0] <= last[0]; ++out[0]) {
      for (out[1] = first[1]; out[1] <= last[1]; ++out[1]) {
        for (out[2] = first[2]; out[2] <= last[2]; ++out[2]) {
          const Index from = outputs.ElementAt(in.batch, out, in.channel);
          const Index position =
              (Offset(in, 0, out) * window.size[1] + Offset(in, 1, out)) *
                  window.size[2] +
              Offset(in, 2, out);
          const uint64_t positions = Positions(from);
          const auto values = Channels<T, kCount>::From(dy + from);
          COMPTRAIN_UNROLL
          for (int n = 0; n < kCount; ++n) {
            if (!IsAt(positions, n, position)) continue;
            single.of[n] = values.of[n];
            sum[n] += ToFloat(values.of[n]);
          }
        }
      }
    }
    COMPTRAIN_UNROLL
    for (int n = 0; n < kCount; ++n) {
      // One alone is passed bit for bit.
      if (covers > 1) FromFloat(sum[n], &single.of[n]);
    }
    single.To(dx + item * kCount);
  }

 private:
  COMPTRAIN_HD Index Offset(const Place<Index>& in, int d,
                            const Index* out) const {
    return in.at[d] + window.pad[d] - out[d] * window.stride[d];
  }
  // Of element `from` and those beside it, from the lowest bits on.
  COMPTRAIN_HD uint64_t Positions(Index from) const {
    const int64_t first_bit = int64_t{from} * bits;
    const uint8_t* const byte = index + (first_bit >> 3);
    uint64_t packed = 0;
    for (int b = 0; 8 * b < kCount * bits; ++b) {
      packed |= uint64_t{byte[b]} << (8 * b);
    }
    return packed >> (first_bit & 7);
  }
  COMPTRAIN_HD bool IsAt(uint64_t positions, int n, Index position) const {
    const auto of_n = static_cast<unsigned>(positions >> (n * bits));
    return (of_n & ((1u << bits) - 1)) == static_cast<unsigned>(position);
  }
};

}  // namespace comptrain
