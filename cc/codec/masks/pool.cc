#include "cc/codec/masks/pool.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "cc/codec/common/isa.h"
#include "cc/codec/masks/pool_kernels.h"

namespace comptrain {
namespace {

// Output elements in a unit of parallel work, and input pixels likewise, are
// chosen so that its position bytes take about this much: they stay in L1.
constexpr int64_t kPositionBytes = 16384;

// [begin, end) along one dimension.
struct Span {
  int64_t begin, end;
  int64_t count() const { return std::max<int64_t>(0, end - begin); }
};

// The input under the first offset of output o's window; may be negative.
int64_t WindowStart(const PoolShape& s, int d, int64_t o) {
  return o * s.stride[d] - s.pad_before[d];
}

// Window offsets of output o that fall on the input.
Span ValidOffsets(const PoolShape& s, int d, int64_t o) {
  const int64_t start = WindowStart(s, d, o);
  return {std::max<int64_t>(0, -start),
          std::min(s.window[d], s.in_size[d] - start)};
}

// Outputs whose window covers input i.
Span CoveringOutputs(const PoolShape& s, int d, int64_t i) {
  const int64_t p = i + s.pad_before[d];
  const int64_t past = p - s.window[d] + 1;
  const int64_t lo = past <= 0 ? 0 : (past + s.stride[d] - 1) / s.stride[d];
  return {lo, std::min(s.out_size[d], p / s.stride[d] + 1)};
}

// Bytes of a position outside the packed index.
int64_t PositionBytes(int bits) { return bits == 16 ? 2 : 1; }

// The table for a shape: only the scalar one has two-byte positions.
const PoolKernels& Kernels(const PoolKernels& narrow, const PoolShape& s) {
  return PoolIndexBits(s) == 16 ? kPoolKernelsWide : narrow;
}

int64_t Pixels(const PoolShape& s, const int64_t size[3]) {
  return s.batch * size[0] * size[1] * size[2];
}

int64_t Ravel(int64_t batch, int64_t a, int64_t b, int64_t c,
              const int64_t size[3]) {
  return ((batch * size[0] + a) * size[1] + b) * size[2] + c;
}

// A row-major pixel number as [batch, d0, d1, d2].
struct Pixel {
  int64_t batch, at[3];
};
Pixel Unravel(int64_t pixel, const int64_t size[3]) {
  Pixel p;
  for (int d = 2; d >= 0; --d) {
    p.at[d] = pixel % size[d];
    pixel /= size[d];
  }
  p.batch = pixel;
  return p;
}

// --- Forward -----------------------------------------------------------------

// Where the window of an output pixel meets the input, and how many pixels of
// its row in turn meet it alike. Most windows of a tensor do, so the last list
// of offsets is kept.
class Window {
 public:
  explicit Window(const PoolShape& shape) : s_(shape) {}

  // False when the window lies in the padding entirely.
  bool MoveTo(const Pixel& out) {
    bool moved = offsets_.empty();
    int64_t first[3];
    for (int d = 0; d < 3; ++d) {
      const Span valid = ValidOffsets(s_, d, out.at[d]);
      if (valid.count() == 0) return false;
      moved =
          moved || valid.begin != valid_[d].begin || valid.end != valid_[d].end;
      valid_[d] = valid;
      first[d] = WindowStart(s_, d, out.at[d]) + valid.begin;
    }
    first_element_ =
        Ravel(out.batch, first[0], first[1], first[2], s_.in_size) *
        s_.channels;
    if (moved) ListOffsets();
    return true;
  }

  int64_t first_element() const { return first_element_; }

  // The run of at most `limit` pixels from `out` on, where the window is.
  PoolRun Run(const Pixel& out, int64_t limit) const {
    int64_t pixels = 1;
    if (valid_[2].count() == s_.window[2]) {
      const int64_t last_start = s_.in_size[2] - s_.window[2];
      const int64_t start = WindowStart(s_, 2, out.at[2]);
      pixels += (last_start - start) / s_.stride[2];
    }
    pixels = std::min({pixels, limit, s_.out_size[2] - out.at[2]});
    return {offsets_.data(), static_cast<int64_t>(offsets_.size()), s_.channels,
            pixels, s_.stride[2] * s_.channels};
  }

 private:
  void ListOffsets() {
    offsets_.clear();
    for (int64_t i = valid_[0].begin; i < valid_[0].end; ++i) {
      for (int64_t j = valid_[1].begin; j < valid_[1].end; ++j) {
        const int64_t row =
            (i - valid_[0].begin) * s_.in_size[1] + (j - valid_[1].begin);
        for (int64_t k = valid_[2].begin; k < valid_[2].end; ++k) {
          const int64_t pixel = row * s_.in_size[2] + k - valid_[2].begin;
          const int64_t position = (i * s_.window[1] + j) * s_.window[2] + k;
          offsets_.push_back(
              {pixel * s_.channels, static_cast<uint32_t>(position)});
        }
      }
    }
  }

  const PoolShape& s_;
  Span valid_[3] = {};
  int64_t first_element_ = 0;
  std::vector<PoolOffset> offsets_;
};

// A window with nothing in it: the lowest value, position 0 (which the
// gradient drops).
void FillEmpty(DType dtype, int64_t channels, void* y) {
  if (y == nullptr) return;
  WithStorageType(dtype, [&](auto lowest) {
    FromFloat(-std::numeric_limits<float>::infinity(), &lowest);
    std::fill_n(static_cast<decltype(lowest)*>(y), channels, lowest);
  });
}

// Byte addresses of a tensor that may be absent.
uint8_t* At(void* base, int64_t element, int64_t item_bytes) {
  return base == nullptr ? nullptr
                         : static_cast<uint8_t*>(base) + element * item_bytes;
}
const uint8_t* At(const void* base, int64_t element, int64_t item_bytes) {
  return static_cast<const uint8_t*>(base) + element * item_bytes;
}

// Positions and maxima of output pixels [range).
void IndexPixels(const PoolTask& pool, const void* x, Span range, void* y,
                 uint8_t* positions) {
  const PoolShape& s = pool.shape;
  const DType dtype = pool.dtype;
  const auto kernel = Kernels(pool.kernels, s).index[static_cast<int>(dtype)];
  const int64_t item_bytes = ItemBytes(dtype);
  const int64_t pixel_bytes = s.channels * PositionBytes(PoolIndexBits(s));
  Window window(s);
  Pixel out = Unravel(range.begin, s.out_size);
  for (int64_t p = range.begin; p < range.end;) {
    uint8_t* maxima = At(y, p * s.channels, item_bytes);
    int64_t done = 1;
    if (window.MoveTo(out)) {
      const PoolRun run = window.Run(out, range.end - p);
      kernel(At(x, window.first_element(), item_bytes), run, maxima, positions);
      done = run.pixels;
    } else {
      FillEmpty(dtype, s.channels, maxima);
      std::fill_n(positions, pixel_bytes, uint8_t{0});
    }
    p += done;
    positions += done * pixel_bytes;
    out.at[2] += done;
    if (out.at[2] == s.out_size[2]) out = Unravel(p, s.out_size);
  }
}

// Output pixels in a unit of parallel work: units end on byte boundaries of
// the index, so that no two threads share a byte.
int64_t UnitPixels(const PoolShape& s, int bits) {
  const int64_t per_byte = 8 / std::min(8, bits);
  const int64_t group = per_byte / std::gcd(per_byte, s.channels);
  return group * std::max<int64_t>(1, kPositionBytes / (group * s.channels));
}

// --- Backward ----------------------------------------------------------------

// Output rows that cover an input row, and where in their windows it lies.
struct CoverRow {
  int64_t first_pixel;  // number of the row's output pixel 0
  unsigned position;    // of window offset 0 along the row
};

std::vector<CoverRow> CoveringRows(const PoolShape& s, const Pixel& in) {
  std::vector<CoverRow> rows;
  const Span d0 = CoveringOutputs(s, 0, in.at[0]);
  const Span d1 = CoveringOutputs(s, 1, in.at[1]);
  for (int64_t i = d0.begin; i < d0.end; ++i) {
    const int64_t plane = (in.at[0] - WindowStart(s, 0, i)) * s.window[1];
    for (int64_t j = d1.begin; j < d1.end; ++j) {
      const int64_t row = plane + in.at[1] - WindowStart(s, 1, j);
      rows.push_back({Ravel(in.batch, i, j, 0, s.out_size),
                      static_cast<unsigned>(row * s.window[2])});
    }
  }
  return rows;
}

// The positions of the outputs over one stretch of an input row, unpacked.
class Positions {
 public:
  Positions(const PoolKernels& kernels, const uint8_t* index, int bits,
            int64_t channels)
      : kernels_(kernels),
        index_(index),
        bits_(bits),
        channels_(channels),
        pixel_bytes_(channels * PositionBytes(bits)) {}

  // Output pixels `columns` of every row.
  void Load(const std::vector<CoverRow>& rows, Span columns) {
    columns_ = columns;
    start_.clear();
    if (bits_ >= 8) return StartInIndex(rows);
    const int64_t per_byte = 8 / bits_;
    const int64_t room = columns.count() * channels_ + per_byte;
    if (static_cast<int64_t>(bytes_.size()) < room * int64_t(rows.size())) {
      bytes_.resize(room * rows.size());
    }
    uint8_t* out = bytes_.data();
    for (const CoverRow& row : rows) {
      const int64_t element = (row.first_pixel + columns.begin) * channels_;
      const int64_t lead = element % per_byte;  // neighbours in its byte
      kernels_.unpack(index_ + element / per_byte,
                      lead + columns.count() * channels_, bits_, out);
      start_.push_back(out + lead);
      out += room;
    }
  }

  const uint8_t* Row(size_t row, int64_t column) const {
    return start_[row] + (column - columns_.begin) * pixel_bytes_;
  }

 private:
  void StartInIndex(const std::vector<CoverRow>& rows) {
    for (const CoverRow& row : rows) {
      start_.push_back(index_ +
                       (row.first_pixel + columns_.begin) * pixel_bytes_);
    }
  }

  const PoolKernels& kernels_;
  const uint8_t* index_;
  int bits_;
  int64_t channels_;
  int64_t pixel_bytes_;
  Span columns_ = {0, 0};
  std::vector<uint8_t> bytes_;
  std::vector<const uint8_t*> start_;
};

// Gradient of input pixels [range) of one row.
class RowGradient {
 public:
  RowGradient(const PoolKernels& kernels, const uint8_t* index, DType dtype,
              const PoolShape& shape, const void* dy, void* dx)
      : kernel_(Kernels(kernels, shape).gradient[static_cast<int>(dtype)]),
        item_bytes_(ItemBytes(dtype)),
        s_(shape),
        dy_(dy),
        dx_(dx),
        positions_(kernels, index, PoolIndexBits(shape), shape.channels) {}

  void Run(int64_t row_number, Span range) {
    const int64_t first_pixel = row_number * s_.in_size[2];
    const std::vector<CoverRow> rows =
        CoveringRows(s_, Unravel(first_pixel, s_.in_size));
    positions_.Load(rows, {CoveringOutputs(s_, 2, range.begin).begin,
                           CoveringOutputs(s_, 2, range.end - 1).end});
    for (int64_t k = range.begin; k < range.end; ++k) {
      FindCovers(rows, k);
      kernel_(covers_.data(), static_cast<int64_t>(covers_.size()), s_.channels,
              At(dx_, (first_pixel + k) * s_.channels, item_bytes_));
    }
  }

 private:
  void FindCovers(const std::vector<CoverRow>& rows, int64_t k) {
    covers_.clear();
    const Span columns = CoveringOutputs(s_, 2, k);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int64_t o = columns.begin; o < columns.end; ++o) {
        const int64_t element = (rows[r].first_pixel + o) * s_.channels;
        const auto offset = static_cast<unsigned>(k - WindowStart(s_, 2, o));
        covers_.push_back({positions_.Row(r, o), At(dy_, element, item_bytes_),
                           rows[r].position + offset});
      }
    }
  }

  void (*kernel_)(const PoolCover*, int64_t, int64_t, void*);
  int64_t item_bytes_;
  const PoolShape& s_;
  const void* dy_;
  void* dx_;
  Positions positions_;
  std::vector<PoolCover> covers_;
};

}  // namespace

// Windows of more than 65536 positions have no index: callers refuse them.
int PoolIndexBits(const PoolShape& shape) {
  const int64_t positions = shape.window[0] * shape.window[1] * shape.window[2];
  for (int bits = 1; bits <= 8; bits *= 2) {
    if (positions <= int64_t{1} << bits) return bits;
  }
  return 16;
}

int64_t PoolIndexBytes(const PoolShape& shape) {
  const int64_t elements = Pixels(shape, shape.out_size) * shape.channels;
  return (elements * PoolIndexBits(shape) + 7) / 8;
}

void MaxPoolIndexWith(const PoolTask& pool, const void* x, void* y,
                      uint8_t* index, const ParallelFor& parallel) {
  const int64_t pixels = Pixels(pool.shape, pool.shape.out_size);
  if (pixels <= 0 || pool.shape.channels <= 0) return;
  const int bits = PoolIndexBits(pool.shape);
  const int64_t unit = UnitPixels(pool.shape, bits);
  const int64_t cost = unit * pool.shape.channels * pool.shape.window[0] *
                       pool.shape.window[1] * pool.shape.window[2] / 2;
  const auto body = [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> positions(bits < 8 ? unit * pool.shape.channels : 0);
    for (int64_t u = begin; u < end; ++u) {
      const Span range = {u * unit, std::min(pixels, (u + 1) * unit)};
      uint8_t* packed = index + range.begin * pool.shape.channels * bits / 8;
      uint8_t* bytes = bits < 8 ? positions.data() : packed;
      IndexPixels(pool, x, range, y, bytes);
      if (bits == 8 || bits == 16) continue;
      pool.kernels.pack(bytes, range.count() * pool.shape.channels, bits,
                        packed);
    }
  };
  parallel((pixels + unit - 1) / unit, cost, body);
}

void MaxPoolGradientWith(const PoolTask& pool, const uint8_t* index,
                         const void* dy, void* dx,
                         const ParallelFor& parallel) {
  const int64_t pixels = Pixels(pool.shape, pool.shape.in_size);
  if (pixels <= 0 || pool.shape.channels <= 0) return;
  const int64_t width = pool.shape.in_size[2];
  const int64_t stretch = std::min(
      width, std::max<int64_t>(1, kPositionBytes / pool.shape.channels));
  const int64_t per_row = (width + stretch - 1) / stretch;
  const auto body = [&](int64_t begin, int64_t end) {
    RowGradient gradient(pool.kernels, index, pool.dtype, pool.shape, dy, dx);
    for (int64_t u = begin; u < end; ++u) {
      const int64_t first = u % per_row * stretch;
      gradient.Run(u / per_row, {first, std::min(width, first + stretch)});
    }
  };
  parallel(pixels / width * per_row, stretch * pool.shape.channels * 2, body);
}

void MaxPoolIndex(const void* x, DType dtype, const PoolShape& shape, void* y,
                  uint8_t* index, const ParallelFor& parallel) {
  MaxPoolIndexWith({PoolKernelsOf(Isa::kBest), dtype, shape}, x, y, index,
                   parallel);
}

void MaxPoolGradient(const uint8_t* index, DType dtype, const PoolShape& shape,
                     const void* dy, void* dx, const ParallelFor& parallel) {
  MaxPoolGradientWith({PoolKernelsOf(Isa::kBest), dtype, shape}, index, dy, dx,
                      parallel);
}

}  // namespace comptrain
