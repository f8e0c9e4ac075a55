#include "cc/codec/pool.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "cc/codec/half.h"

namespace comptrain {
namespace {

// [begin, end) along one dimension.
struct Span {
  int64_t begin, end;
};

// Window offsets of output o that fall on the input, along dimension d.
Span ValidOffsets(const PoolShape& s, int d, int64_t o) {
  const int64_t first = o * s.stride[d] - s.pad_before[d];
  return {std::max<int64_t>(0, -first),
          std::min(s.window[d], s.in_size[d] - first)};
}

// Outputs whose window covers input i, along dimension d.
Span CoveringOutputs(const PoolShape& s, int d, int64_t i) {
  const int64_t p = i + s.pad_before[d];
  const int64_t past = p - s.window[d] + 1;
  const int64_t lo = past <= 0 ? 0 : (past + s.stride[d] - 1) / s.stride[d];
  return {lo, std::min(s.out_size[d], p / s.stride[d] + 1)};
}

int64_t OutPixels(const PoolShape& s) {
  return s.batch * s.out_size[0] * s.out_size[1] * s.out_size[2];
}

int64_t InPixels(const PoolShape& s) {
  return s.batch * s.in_size[0] * s.in_size[1] * s.in_size[2];
}

// Splits a row-major pixel number into [batch, d0, d1, d2].
struct Position {
  int64_t batch, at[3];
};
Position Unravel(int64_t pixel, const int64_t size[3]) {
  Position p;
  for (int d = 2; d >= 0; --d) {
    p.at[d] = pixel % size[d];
    pixel /= size[d];
  }
  p.batch = pixel;
  return p;
}

int64_t Ravel(int64_t batch, int64_t a, int64_t b, int64_t c,
              const int64_t size[3]) {
  return ((batch * size[0] + a) * size[1] + b) * size[2] + c;
}

unsigned ReadIndex(const uint8_t* index, int bits, int64_t element) {
  if (bits == 16) return index[2 * element] | index[2 * element + 1] << 8;
  const int64_t bit = element * bits;
  return (index[bit / 8] >> (bit % 8)) & ((1u << bits) - 1);
}

// The caller has zeroed the bytes.
void OrIndex(uint8_t* index, int bits, int64_t element, unsigned value) {
  if (bits == 16) {
    index[2 * element] = static_cast<uint8_t>(value);
    index[2 * element + 1] = static_cast<uint8_t>(value >> 8);
    return;
  }
  const int64_t bit = element * bits;
  index[bit / 8] |= static_cast<uint8_t>(value << (bit % 8));
}

// Output pixels in a group that ends on a byte boundary of the index.
int64_t GroupPixels(const PoolShape& s, int bits) {
  const int64_t per_byte = std::max(1, 8 / bits);
  return per_byte / std::gcd(per_byte, std::max<int64_t>(1, s.channels));
}

template <class T>
void IndexPixel(const T* x, const PoolShape& s, int bits, int64_t pixel, T* y,
                uint8_t* index) {
  const Position p = Unravel(pixel, s.out_size);
  Span v[3];
  for (int d = 0; d < 3; ++d) v[d] = ValidOffsets(s, d, p.at[d]);
  for (int64_t c = 0; c < s.channels; ++c) {
    bool found = false;
    T best;
    FromFloat(-std::numeric_limits<float>::infinity(), &best);
    unsigned where = 0;
    for (int64_t i = v[0].begin; i < v[0].end; ++i)
      for (int64_t j = v[1].begin; j < v[1].end; ++j)
        for (int64_t k = v[2].begin; k < v[2].end; ++k) {
          const int64_t in = Ravel(
              p.batch, p.at[0] * s.stride[0] - s.pad_before[0] + i,
              p.at[1] * s.stride[1] - s.pad_before[1] + j,
              p.at[2] * s.stride[2] - s.pad_before[2] + k, s.in_size);
          const T candidate = x[in * s.channels + c];
          const float a = ToFloat(candidate), b = ToFloat(best);
          if (!found || (!(a <= b) && b == b)) {
            found = true;
            best = candidate;
            where = static_cast<unsigned>((i * s.window[1] + j) * s.window[2] + k);
          }
        }
    if (y != nullptr) y[pixel * s.channels + c] = best;
    OrIndex(index, bits, pixel * s.channels + c, where);
  }
}

template <class T>
void GradientPixel(const uint8_t* index, const PoolShape& s, int bits,
                   int64_t pixel, const T* dy, T* dx) {
  const Position p = Unravel(pixel, s.in_size);
  Span o[3];
  for (int d = 0; d < 3; ++d) o[d] = CoveringOutputs(s, d, p.at[d]);
  for (int64_t c = 0; c < s.channels; ++c) {
    float sum = 0;
    for (int64_t i = o[0].begin; i < o[0].end; ++i)
      for (int64_t j = o[1].begin; j < o[1].end; ++j)
        for (int64_t k = o[2].begin; k < o[2].end; ++k) {
          const int64_t w0 = p.at[0] + s.pad_before[0] - i * s.stride[0];
          const int64_t w1 = p.at[1] + s.pad_before[1] - j * s.stride[1];
          const int64_t w2 = p.at[2] + s.pad_before[2] - k * s.stride[2];
          const int64_t e =
              Ravel(p.batch, i, j, k, s.out_size) * s.channels + c;
          if (ReadIndex(index, bits, e) ==
              (w0 * s.window[1] + w1) * s.window[2] + w2) {
            sum += ToFloat(dy[e]);
          }
        }
    FromFloat(sum, &dx[pixel * s.channels + c]);
  }
}

}  // namespace

int PoolIndexBits(const PoolShape& shape) {
  const int64_t positions =
      shape.window[0] * shape.window[1] * shape.window[2];
  for (int bits = 1; bits <= 8; bits *= 2) {
    if (positions <= int64_t{1} << bits) return bits;
  }
  return 16;
}

int64_t PoolIndexBytes(const PoolShape& shape) {
  return (OutPixels(shape) * shape.channels * PoolIndexBits(shape) + 7) / 8;
}

void MaxPoolIndex(const void* x, DType dtype, const PoolShape& shape, void* y,
                  uint8_t* index, const ParallelFor& parallel) {
  const int bits = PoolIndexBits(shape);
  const int64_t pixels = OutPixels(shape);
  if (pixels <= 0 || shape.channels <= 0) return;
  const int64_t group = GroupPixels(shape, bits);
  WithStorageType(dtype, [&](auto type) {
    using T = decltype(type);
    parallel((pixels + group - 1) / group, group * shape.channels * 8,
             [&](int64_t begin, int64_t end) {
               const int64_t first = begin * group;
               const int64_t last = std::min(pixels, end * group);
               const int64_t row_bits = shape.channels * bits;
               std::fill(index + first * row_bits / 8,
                         index + (last * row_bits + 7) / 8, uint8_t{0});
               for (int64_t p = first; p < last; ++p) {
                 IndexPixel(static_cast<const T*>(x), shape, bits, p,
                            static_cast<T*>(y), index);
               }
             });
  });
}

void MaxPoolGradient(const uint8_t* index, DType dtype, const PoolShape& shape,
                     const void* dy, void* dx, const ParallelFor& parallel) {
  const int bits = PoolIndexBits(shape);
  const int64_t pixels = InPixels(shape);
  if (pixels <= 0 || shape.channels <= 0) return;
  WithStorageType(dtype, [&](auto type) {
    using T = decltype(type);
    parallel(pixels, shape.channels * 8, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        GradientPixel(index, shape, bits, p, static_cast<const T*>(dy),
                      static_cast<T*>(dx));
      }
    });
  });
}

}  // namespace comptrain
