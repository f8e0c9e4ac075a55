#include "cc/codec/batch_norm.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "cc/codec/batch_norm_kernels.h"
#include "cc/codec/plane_layout.h"
#include "cc/codec/plane_ranges.h"

namespace comptrain {
namespace {

using plane::FirstFailure;
using plane::kLanes;
using plane::kRangeTiles;
using plane::kTileValues;
using plane::StreamView;
using plane::TilePlace;

const BatchNormKernels& Select(Isa isa) {
  const bool best = isa == Isa::kBest;
  const BatchNormKernels* k = nullptr;
  if ((best || isa == Isa::kAvx512) && IsaAvailable(Isa::kAvx512)) {
    k = BatchNormKernelsAvx512();
  } else if ((best || isa == Isa::kAvx2) && IsaAvailable(Isa::kAvx2)) {
    k = BatchNormKernelsAvx2();
  }
  return k != nullptr ? *k : *BatchNormKernelsScalar();
}

struct VectorOfOne {
  static constexpr int kWidth = 1;
  using Floats = float;
  template <class T>
  static float Load(const T* p) {
    return ToFloat(*p);
  }
  template <class T>
  static void Store(float v, T* p) {
    FromFloat(v, p);
  }
};

// Sums over the values of each channel, in one block.
struct Sums {
  explicit Sums(int64_t channels) : dy(channels), dyx(channels) {}
  std::vector<double> dy;
  std::vector<double> dyx;  // of dy * (x - mean)
};

// One call of BatchNormGradient.
class Gradient {
 public:
  Gradient(const StreamView& v, const BatchNormChannels& of, const void* dy,
           const ParallelFor& parallel, Isa isa)
      : v_(v),
        of_(of),
        dy_(static_cast<const uint8_t*>(dy)),
        parallel_(parallel),
        kernels_(Select(isa)),
        decode_(plane::SelectKernels(isa, v.quantizer.dtype,
                                     v.quantizer.mid_rise).decode),
        type_(static_cast<int>(v.quantizer.dtype)),
        item_(static_cast<int64_t>(ItemBytes(v.quantizer.dtype))),
        row_bytes_(v.geometry.row * item_),
        period_(Period(v.geometry.flat, of.channels)) {}

  Status Run(void* dx, float* dgamma, float* dbeta) const {
    Sums total(of_.channels);
    Status s = SumAll(&total);
    if (!s.ok()) return s;
    for (int64_t c = 0; c < of_.channels; ++c) {
      dbeta[c] = static_cast<float>(total.dy[c]);
      dgamma[c] = static_cast<float>(total.dyx[c] * of_.inv_std[c]);
    }
    return WriteDx(total, static_cast<uint8_t*>(dx));
  }

 private:
  // In the flat view, value i belongs to channel i % channels. Per-channel
  // arrays are repeated, so that a tile reads kTileValues of them from
  // i % period on: a multiple of 16 where that is not too long.
  static int64_t Period(bool flat, int64_t channels) {
    if (!flat) return channels;
    const int64_t aligned = std::lcm<int64_t>(channels, 16);
    return aligned <= 1024 ? aligned : channels;
  }
  int64_t RepeatedSize() const {
    return v_.geometry.flat ? period_ + kTileValues : of_.channels;
  }
  template <class F>
  std::vector<float> Repeat(const F& of_channel) const {
    std::vector<float> out(RepeatedSize());
    int64_t c = 0;
    for (float& value : out) {
      value = static_cast<float>(of_channel(c));
      if (++c == of_.channels) c = 0;
    }
    return out;
  }

  // Where a tile's arrays of per-channel values start.
  int64_t FirstOf(const TilePlace& place) const {
    return place.offset % period_;
  }
  static int Rows(const TilePlace& place) {
    return (place.valid + kLanes - 1) / kLanes;
  }
  // The last tile of the flat view may end within a row: work on a copy.
  static bool Ragged(const TilePlace& place) {
    return place.valid % kLanes != 0;
  }

  Status SumAll(Sums* total) const;
  void SumLanes(const std::vector<float>& mean, int64_t begin, int64_t end,
                FirstFailure* failure, Sums* sums) const;
  void SumFlat(const std::vector<float>& mean, int64_t begin, int64_t end,
               FirstFailure* failure, Sums* sums) const;
  Status WriteDx(const Sums& total, uint8_t* dx) const;

  const StreamView& v_;
  const BatchNormChannels& of_;
  const uint8_t* const dy_;
  const ParallelFor& parallel_;
  const BatchNormKernels& kernels_;
  const plane::DecodeTileFn decode_;
  const int type_;
  const int64_t item_;
  const int64_t row_bytes_;
  const int64_t period_;
};

// Blocks of ranges, as many whatever the number of threads: their sums take
// about 1/64 of a tensor's memory.
int64_t Blocks(const plane::Geometry& g, int64_t channels) {
  const int64_t most = std::clamp<int64_t>(g.n / (256 * channels), 16, 256);
  return std::min(g.ranges(), most);
}

Status Gradient::SumAll(Sums* total) const {
  const std::vector<float> mean =
      Repeat([&](int64_t c) { return of_.mean[c]; });
  const int64_t ranges = v_.geometry.ranges();
  const int64_t n_blocks = Blocks(v_.geometry, of_.channels);
  std::vector<Sums> blocks(n_blocks, Sums(of_.channels));
  const int64_t cost =
      plane::kDecodeCyclesPerRange * plane::CeilDiv(ranges, n_blocks);
  const Status s = plane::RunChecked(
      v_, parallel_, n_blocks, cost,
      [&](int64_t begin, int64_t end, FirstFailure* failure) {
        for (int64_t b = begin; b < end; ++b) {
          const int64_t first = ranges * b / n_blocks;
          const int64_t last = ranges * (b + 1) / n_blocks;
          if (v_.geometry.flat) {
            SumFlat(mean, first, last, failure, &blocks[b]);
          } else {
            SumLanes(mean, first, last, failure, &blocks[b]);
          }
        }
      });
  for (const Sums& block : blocks) {
    for (int64_t c = 0; c < of_.channels; ++c) {
      total->dy[c] += block.dy[c];
      total->dyx[c] += block.dyx[c];
    }
  }
  return s;
}

void Gradient::SumLanes(const std::vector<float>& mean, int64_t begin,
                        int64_t end, FirstFailure* failure, Sums* sums) const {
  const auto lane_sums = kernels_.lane_sums[type_];
  plane::ForDecodedTiles(
      v_, decode_, begin, end, failure,
      [&](const TilePlace& place, const uint8_t* x) {
        const int64_t first = FirstOf(place);
        float dy[kLanes], dyx[kLanes];
        lane_sums(x, dy_ + place.offset * item_, row_bytes_, Rows(place),
                  mean.data() + first, dy, dyx);
        for (int l = 0; l < kLanes; ++l) {
          sums->dy[first + l] += dy[l];
          sums->dyx[first + l] += dyx[l];
        }
      });
}

void Gradient::SumFlat(const std::vector<float>& mean, int64_t begin,
                       int64_t end, FirstFailure* failure, Sums* sums) const {
  const auto flat_sums = kernels_.flat_sums[type_];
  std::vector<float> dy(mean.size()), dyx(mean.size());
  for (int64_t range = begin; range < end; ++range) {
    plane::ForDecodedTiles(
        v_, decode_, range, range + 1, failure,
        [&](const TilePlace& place, const uint8_t* x) {
          const int64_t first = FirstOf(place);
          const uint8_t* from = dy_ + place.offset * item_;
          alignas(64) uint8_t whole[kTileValues * 4];
          if (Ragged(place)) {
            std::memset(whole, 0, sizeof whole);
            from = static_cast<const uint8_t*>(
                std::memcpy(whole, from, place.valid * item_));
          }
          flat_sums(x, from, Rows(place), mean.data() + first,
                    dy.data() + first, dyx.data() + first);
        });
    // Floats hold the few additions of a range.
    int64_t c = 0;
    for (size_t i = 0; i < mean.size(); ++i) {
      sums->dy[c] += dy[i];
      sums->dyx[c] += dyx[i];
      if (++c == of_.channels) c = 0;
    }
    std::fill(dy.begin(), dy.end(), 0.0f);
    std::fill(dyx.begin(), dyx.end(), 0.0f);
  }
}

Status Gradient::WriteDx(const Sums& total, uint8_t* dx) const {
  const double count = static_cast<double>(v_.geometry.n / of_.channels);
  const auto inv = [&](int64_t c) { return static_cast<double>(of_.inv_std[c]); };
  const auto mean = Repeat([&](int64_t c) { return of_.mean[c]; });
  const auto slope =
      Repeat([&](int64_t c) { return total.dyx[c] * inv(c) * inv(c) / count; });
  const auto shift = Repeat([&](int64_t c) { return total.dy[c] / count; });
  const auto scale = Repeat([&](int64_t c) { return of_.gamma[c] * inv(c); });
  const auto gradient = kernels_.gradient[type_];
  const int line_step = v_.geometry.flat ? kLanes : 0;
  return plane::RunChecked(
      v_, parallel_, v_.geometry.ranges(), plane::kDecodeCyclesPerRange,
      [&](int64_t begin, int64_t end, FirstFailure* failure) {
        plane::ForDecodedTiles(
            v_, decode_, begin, end, failure,
            [&](const TilePlace& place, const uint8_t* x) {
              const int64_t first = FirstOf(place);
              const BatchNormLine line = {
                  mean.data() + first, slope.data() + first,
                  shift.data() + first, scale.data() + first};
              const uint8_t* from = dy_ + place.offset * item_;
              uint8_t* to = dx + place.offset * item_;
              if (!Ragged(place)) {
                gradient(x, from, row_bytes_, Rows(place), line, line_step, to);
                return;
              }
              alignas(64) uint8_t whole[kTileValues * 4] = {};
              std::memcpy(whole, from, place.valid * item_);
              gradient(x, whole, row_bytes_, Rows(place), line, line_step,
                       whole);
              std::memcpy(to, whole, place.valid * item_);
            });
      });
}

uint32_t HeaderChannels(const uint8_t* stream) {
  StreamHeader h;
  std::memcpy(&h, stream, sizeof h);
  return h.channels;
}

}  // namespace

const BatchNormKernels* BatchNormKernelsScalar() {
  return MakeBatchNormKernels<VectorOfOne>();
}

Status BatchNormGradient(const uint8_t* stream, size_t stream_bytes,
                         DType dtype, int64_t n, const void* dy,
                         const BatchNormChannels& of, void* dx, float* dgamma,
                         float* dbeta, const ParallelFor& parallel, Isa isa) {
  Status s = plane::CheckIsa(isa);
  if (!s.ok()) return s;
  StreamView v;
  s = plane::OpenValues(stream, stream_bytes, dtype, n, &v);
  if (!s.ok()) return s;
  if (of.channels < 1) {
    return Status::Invalid("batch normalization: channels must be positive, "
                           "got " + std::to_string(of.channels));
  }
  if (n > 0 && HeaderChannels(stream) != of.channels) {
    return Status::Invalid(
        "codec A stream: header field channels must be the number of channels "
        "normalized, " +
        std::to_string(of.channels) + ", got " +
        std::to_string(HeaderChannels(stream)));
  }
  if (of.gamma == nullptr || of.mean == nullptr || of.inv_std == nullptr ||
      dgamma == nullptr || dbeta == nullptr ||
      ((dy == nullptr || dx == nullptr) && n > 0)) {
    return Status::Invalid(
        "batch normalization: no array may be null when it has elements");
  }
  if (n == 0) {
    std::fill(dgamma, dgamma + of.channels, 0.0f);
    std::fill(dbeta, dbeta + of.channels, 0.0f);
    return {};
  }
  return Gradient(v, of, dy, parallel, isa).Run(dx, dgamma, dbeta);
}

}  // namespace comptrain
