// Internal, for CUDA sources: columns of 32 values whose codes share words, a
// row apart, so that neighbours in memory belong to neighbouring threads. Each
// has one scale and one channel, and none of its values is missing. A thread
// works on kTogether<T> of them, side by side.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/codec/common/bits.h"
#include "cc/codec/common/gpu_launch.h"
#include "cc/codec/common/status.h"
#include "cc/codec/fixed_rate_gpu/tensor.h"

namespace comptrain::gpu {

constexpr int kColumnThreads = 256;
template <class T>
constexpr int kTogether = ColumnsTogether(sizeof(T));

// The first that the thread works on of columns, or of groups.
template <int kEach>
static __device__ inline int64_t ColumnOfThread() {
  return (int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * kEach;
}

// each: columns, or groups, of a thread.
template <class... Parameters, class... Arguments>
static Status LaunchColumns(const char* what, void (*kernel)(Parameters...),
                            int64_t columns, int each, CUstream_st* cuda_stream,
                            const Arguments&... arguments) {
  return Launch(kFixedRate, what, kernel,
                CeilDiv(columns, int64_t{each} * kColumnThreads),
                kColumnThreads, 0, cuda_stream, arguments...);
}

// Where a column's values are.
struct Column {
  int64_t column;   // its number: its scale's, too, and one of its channel
  int64_t first;    // place of the first in the tensor
  int64_t word;     // its first word
  uint32_t number;  // for dither, without the seed

  COMPTRAIN_HD Column(const TensorOnGpu& of, int64_t number_of_it)
      : column(number_of_it) {
    int64_t at;
    const int64_t block = of.words.by_row.Split(column, &at);
    first = block * of.words.length + at;
    word = block * of.coding.bits * of.words.row + at;
    number = of.words.NumberOf(block, at);
  }
  // The j-th beside it, of those of one thread.
  COMPTRAIN_HD Column Beside(int j) const {
    Column c = *this;
    c.column += j;
    c.first += j;
    c.word += j;
    c.number += static_cast<uint32_t>(j);
    return c;
  }
};

// A value of each of a thread's columns, side by side.
template <class T>
struct Neighbours {
  static constexpr int kBits = 8 * sizeof(T);
  using Item = std::conditional_t<kBits == 32, uint32_t, uint16_t>;

  uint32_t bits;

  COMPTRAIN_HD T Of(int j) const {
    const auto item = static_cast<Item>(bits >> (j * kBits));
    T v;
    std::memcpy(&v, &item, sizeof v);
    return v;
  }
  COMPTRAIN_HD void Set(int j, T v) {
    Item item;
    std::memcpy(&item, &v, sizeof v);
    const uint32_t others = ~(uint32_t{static_cast<Item>(-1)} << (j * kBits));
    bits = (bits & others) | uint32_t{item} << (j * kBits);
  }
  // The compiler makes floats of it again where it needs them, instead of
  // keeping them: registers are what there is least of.
  COMPTRAIN_HD void Forget() { asm volatile("" : "+r"(bits)); }
};

// All are loaded before one is used.
template <class T>
COMPTRAIN_HD static inline void LoadColumns(const void* x, const Column& at,
                                            int64_t row,
                                            Neighbours<T>* values) {
  const auto* from = reinterpret_cast<const Neighbours<T>*>(
      static_cast<const T*>(x) + at.first);
  COMPTRAIN_UNROLL
  for (int i = 0; i < kPacked; ++i, from += row / kTogether<T>) {
    values[i] = *from;
  }
}

// Where they go, as soon as the last column's value is known.
template <class T>
struct ColumnsOut {
  Neighbours<T>* to;
  int64_t row;

  COMPTRAIN_HD ColumnsOut(void* x, const Column& at, int64_t row)
      : to(reinterpret_cast<Neighbours<T>*>(static_cast<T*>(x) + at.first)),
        row(row / kTogether<T>) {}
  COMPTRAIN_HD void Put(int j, const Neighbours<T>& values) {
    if (j < kTogether<T> - 1) return;
    *to = values;
    to += row;
  }
};

// Number of bits and place of a value are constants, once loops are unrolled.
template <int kBits>
struct ColumnWords {
  static constexpr int kCodes = 32 / kBits, kSpare = 32 % kBits;
  static constexpr int kWhole = kBits * kCodes;  // codes that lie in one word
  static constexpr uint32_t kMask = (1u << kBits) - 1;

  uint32_t words[kBits] = {};

  COMPTRAIN_HD void Load(const uint32_t* from, int64_t row) {
    COMPTRAIN_UNROLL
    for (int w = 0; w < kBits; ++w, from += row) words[w] = *from;
  }
  COMPTRAIN_HD void Store(uint32_t* to, int64_t row) const {
    COMPTRAIN_UNROLL
    for (int w = 0; w < kBits; ++w, to += row) *to = words[w];
  }

  COMPTRAIN_HD uint32_t Code(int i) const {
    if (i < kWhole) return words[i / kCodes] >> (i % kCodes * kBits) & kMask;
    uint32_t code = 0;
    COMPTRAIN_UNROLL
    for (int w = 0; w < kBits; ++w) {
      code |= (words[w] >> (kCodes * kBits + i - kWhole) & 1) << w;
    }
    return code;
  }
  // code: of a place that has none yet.
  COMPTRAIN_HD void Put(int i, uint32_t code) {
    if (i < kWhole) {
      words[i / kCodes] += code << (i % kCodes * kBits);
      return;
    }
    COMPTRAIN_UNROLL
    for (int w = 0; w < kBits; ++w) {
      words[w] += (code >> w & 1) << (kCodes * kBits + i - kWhole);
    }
  }
};

// Calls f with the number of bits as a type: f(std::integral_constant<int, 2>).
template <class F>
static inline Status WithBits(int bits, const F& f) {
  switch (bits) {
    case 2:
      return f(std::integral_constant<int, 2>());
    case 3:
      return f(std::integral_constant<int, 3>());
    case 4:
      return f(std::integral_constant<int, 4>());
    case 5:
      return f(std::integral_constant<int, 5>());
    case 6:
      return f(std::integral_constant<int, 6>());
    case 7:
      return f(std::integral_constant<int, 7>());
    default:
      return f(std::integral_constant<int, 8>());
  }
}

// Calls f with the number of bits and with a value of the storage type.
template <class F>
static inline Status WithBitsAndType(const FixedRateTensor& of, const F& f) {
  return WithBits(of.coding.bits, [&](auto bits) {
    Status s;
    WithStorageType(of.dtype, [&](auto type) { s = f(bits, type); });
    return s;
  });
}

// What a code stands for, in steps: exact.
template <int kBits>
COMPTRAIN_HD static inline float LevelOf(uint32_t code, float zero,
                                         uint32_t turned) {
  if constexpr (kBits < 8) {
    const float code_plus_128 = BitsFloat(0x43000000 | code << 16);
    return code_plus_128 - TurnPlus128(turned) + (0.5f - zero);
  }
  return FloatOfCode(code) - DitherPlus(zero, turned);
}

// Calls body(i, level, is_zero) for the values of a column, in order: what they
// are in steps, the centre not added, and whether they are 0 instead.
template <int kBits, class Body>
COMPTRAIN_HD static inline void ForLevels(const StreamOnGpu& stream,
                                          const Column& at, const Body& body) {
  const TensorOnGpu& of = stream.of;
  ColumnWords<kBits> words;
  words.Load(reinterpret_cast<const uint32_t*>(stream.data) + at.word,
             of.words.row);
  const uint32_t start = DitherStart(at.number + SeedOf(stream.state));
  const float zero = of.coding.zero_level();
  const auto for_all = [&](auto mid_rise) {
    COMPTRAIN_UNROLL
    for (int i = 0; i < kPacked; ++i) {
      const uint32_t code = words.Code(i);
      const uint32_t turned = start + static_cast<uint32_t>(i) * kDitherTurn;
      body(i, LevelOf<kBits>(code, zero, turned),
           decltype(mid_rise)::value && code == 0);
    }
  };
  if (of.coding.mid_rise) {
    for_all(std::true_type());
  } else {
    for_all(std::false_type());
  }
}

}  // namespace comptrain::gpu
