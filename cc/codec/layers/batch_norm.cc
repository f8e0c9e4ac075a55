#include "cc/codec/layers/batch_norm.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "cc/codec/fixed_rate/rows.h"
#include "cc/codec/layers/batch_norm_kernels.h"
#include "cc/codec/stream/check_params.h"
#include "cc/codec/plane/layout.h"
#include "cc/codec/plane/ranges.h"
#include "cc/codec/plane/strips.h"

namespace comptrain {
namespace {

using plane::kLanes;
using plane::Strip;

// Sums over the values of each column.
struct Sums {
  explicit Sums(int64_t columns) : dy(columns), x(columns), dyx(columns) {}
  std::vector<double> dy;
  std::vector<double> x;    // of x - mean
  std::vector<double> dyx;  // of dy * (x - mean)
};

// Of a source that cannot be damaged.
template <class Work>
Status RunSound(const ParallelFor& parallel, int64_t items, int64_t cost,
                const Work& work) {
  parallel(items, cost,
           [&](int64_t begin, int64_t end) { work(begin, end, nullptr); });
  return {};
}

// Where x_hat comes from: the strips of ranges of values. A plane stream.
struct StreamSource {
  static constexpr int64_t kCyclesPerRange = plane::kDecodeCyclesPerRange;
  const plane::StreamView& v;
  const Isa isa;

  DType dtype() const { return v.quantizer.dtype; }
  int64_t n() const { return v.geometry.n; }
  bool flat() const { return v.geometry.flat; }
  int64_t ranges() const { return v.geometry.ranges(); }

  template <class Work>
  Status Run(const ParallelFor& parallel, int64_t items, int64_t cost,
             const Work& work) const {
    return plane::RunChecked(v, parallel, items, cost, work);
  }
  template <class Body>
  void ForStrips(int64_t begin, int64_t end, FirstFailure* failure,
                 const Body& body) const {
    plane::ForDecodedStrips(v, isa, begin, end, failure, body);
  }
};

// A tensor: x_hat itself, in ranges of one strip.
struct TensorSource {
  static constexpr int64_t kRangeValues = 8192;  // 32 KB, the L1 cache
  static constexpr int64_t kCyclesPerRange = kRangeValues;
  const uint8_t* const x_hat;
  const DType type;
  const int64_t count;
  const BatchNormKernels& kernels;

  DType dtype() const { return type; }
  int64_t n() const { return count; }
  bool flat() const { return true; }
  int64_t ranges() const { return CeilDiv(count, kRangeValues); }

  template <class Work>
  Status Run(const ParallelFor& parallel, int64_t items, int64_t cost,
             const Work& work) const {
    return RunSound(parallel, items, cost, work);
  }
  template <class Body>
  void ForStrips(int64_t begin, int64_t end, FirstFailure* /*failure*/,
                 const Body& body) const {
    alignas(64) float buffer[kRangeValues];
    for (int64_t range = begin; range < end; ++range) {
      Strip strip;
      strip.offset = range * kRangeValues;
      strip.values = std::min(kRangeValues, count - strip.offset);
      strip.x = buffer;
      strip.ahead = range + 1 < ranges() ? kRangeValues : 0;
      if (type == DType::kF32) {
        strip.x = reinterpret_cast<const float*>(x_hat) + strip.offset;
      } else {
        kernels.widen[static_cast<int>(type)](
            x_hat + strip.offset * static_cast<int64_t>(ItemBytes(type)),
            strip.values, buffer);
      }
      body(strip);
    }
  }
};

// A stream of a fixed rate, in ranges of its units of work.
struct FixedRateSource {
  static constexpr int64_t kCyclesPerRange =
      int64_t{FixedRateCoding::kPacked} * kStretch;
  const FixedRateDecoder& decoder;
  const DType type;
  const int64_t count;

  DType dtype() const { return type; }
  int64_t n() const { return count; }
  bool flat() const { return true; }
  int64_t ranges() const { return decoder.units(); }

  template <class Work>
  Status Run(const ParallelFor& parallel, int64_t items, int64_t cost,
             const Work& work) const {
    return RunSound(parallel, items, cost, work);
  }
  template <class Body>
  void ForStrips(int64_t begin, int64_t end, FirstFailure* /*failure*/,
                 const Body& body) const {
    for (int64_t unit = begin; unit < end; ++unit) {
      decoder.ForValues(unit, [&](int64_t first, int64_t n, const float* x) {
        body(Strip{first, n, x, 0});
      });
    }
  }
};

// The tensor as rows of whole pixels, one or more: column j belongs to channel
// j % channels. Where tiles hold channels side by side a row is one pixel,
// otherwise as many as make rows aligned, unless they become too long.
int64_t Columns(bool flat, int64_t channels) {
  if (!flat) return channels;
  const int64_t aligned = std::lcm<int64_t>(channels, kLanes);
  return aligned <= 1024 ? aligned : channels;
}

// One call.
template <class Source>
class Gradient {
 public:
  Gradient(const Source& source, const BatchNormChannels& of, const void* dy,
           const ParallelFor& parallel, Isa isa)
      : source_(source),
        of_(of),
        dy_(static_cast<const uint8_t*>(dy)),
        parallel_(parallel),
        kernels_(BatchNormKernelsOf(isa)),
        type_(static_cast<int>(source.dtype())),
        item_(static_cast<int64_t>(ItemBytes(source.dtype()))),
        columns_(Columns(source.flat(), of.channels)) {}

  Status Run(void* dx, float* dgamma, float* dbeta) const {
    Sums total(of_.channels);
    Status s = SumAll(&total);
    if (!s.ok()) return s;
    Centre(&total);
    for (int64_t c = 0; c < of_.channels; ++c) {
      dbeta[c] = static_cast<float>(total.dy[c]);
      dgamma[c] = static_cast<float>(total.dyx[c] * of_.inv_std[c]);
    }
    return WriteDx(total, static_cast<uint8_t*>(dx));
  }

 private:
  template <class F>
  std::vector<float> ForColumns(const F& of_channel) const {
    std::vector<float> out(columns_);
    for (int64_t j = 0; j < columns_; ++j) {
      out[j] = static_cast<float>(of_channel(j % of_.channels));
    }
    return out;
  }

  // Calls body(panel, column, offset) for the panels a strip consists of:
  // their first column, and their first value's place in the tensor.
  template <class Body>
  void ForPanels(const Strip& strip, const Body& body) const {
    int64_t at = strip.offset;
    int64_t left = strip.values;
    const auto next = [&](int64_t rows, int64_t width, int64_t x_width) {
      if (rows == 0 || width == 0) return;
      body(BatchNormPanel{strip.x + (at - strip.offset), x_width,
                          dy_ + at * item_, columns_ * item_, rows, width,
                          strip.ahead * item_},
           at % columns_, at);
      at += rows * width;
      left -= rows * width;
    };
    if (!source_.flat()) {
      next(left / kLanes, kLanes, kLanes);
      return;
    }
    const int64_t to_row = (columns_ - at % columns_) % columns_;
    next(1, std::min(left, to_row), columns_);
    next(left / columns_, columns_, columns_);
    next(1, left, columns_);
  }

  Status SumAll(Sums* total) const;
  void SumBlock(const std::vector<float>& mean, int64_t begin, int64_t end,
                FirstFailure* failure, Sums* sums) const;
  Status WriteDx(const Sums& total, uint8_t* dx) const;

  // x becomes the mean of x - mean, and dyx is of what is left without it.
  void Centre(Sums* total) const {
    for (int64_t c = 0; c < of_.channels; ++c) {
      total->x[c] /= count();
      total->dyx[c] -= total->x[c] * total->dy[c];
    }
  }
  double count() const {
    return static_cast<double>(source_.n() / of_.channels);
  }

  const Source& source_;
  const BatchNormChannels& of_;
  const uint8_t* const dy_;
  const ParallelFor& parallel_;
  const BatchNormKernels& kernels_;
  const int type_;
  const int64_t item_;
  const int64_t columns_;
};

// Blocks of ranges, as many whatever the number of threads: their sums take
// about 1/64 of a tensor's memory.
int64_t Blocks(int64_t n, int64_t ranges, int64_t columns) {
  return std::min(ranges, std::clamp<int64_t>(n / (256 * columns), 16, 256));
}

template <class Source>
Status Gradient<Source>::SumAll(Sums* total) const {
  const std::vector<float> mean =
      ForColumns([&](int64_t c) { return of_.mean[c]; });
  const int64_t ranges = source_.ranges();
  const int64_t n_blocks = Blocks(source_.n(), ranges, columns_);
  std::vector<Sums> blocks(n_blocks, Sums(columns_));
  const int64_t cost = Source::kCyclesPerRange * CeilDiv(ranges, n_blocks);
  const Status s = source_.Run(
      parallel_, n_blocks, cost,
      [&](int64_t begin, int64_t end, FirstFailure* failure) {
        for (int64_t b = begin; b < end; ++b) {
          SumBlock(mean, ranges * b / n_blocks, ranges * (b + 1) / n_blocks,
                   failure, &blocks[b]);
        }
      });
  for (const Sums& block : blocks) {
    for (int64_t j = 0; j < columns_; ++j) {
      total->dy[j % of_.channels] += block.dy[j];
      total->x[j % of_.channels] += block.x[j];
      total->dyx[j % of_.channels] += block.dyx[j];
    }
  }
  return s;
}

template <class Source>
void Gradient<Source>::SumBlock(const std::vector<float>& mean, int64_t begin,
                                int64_t end, FirstFailure* failure,
                                Sums* sums) const {
  const auto add_sums = kernels_.add_sums[type_];
  source_.ForStrips(begin, end, failure, [&](const Strip& strip) {
    ForPanels(strip, [&](const BatchNormPanel& p, int64_t j, int64_t) {
      add_sums(p, mean.data() + j,
               {sums->dy.data() + j, sums->x.data() + j, sums->dyx.data() + j});
    });
  });
}

template <class Source>
Status Gradient<Source>::WriteDx(const Sums& total, uint8_t* dx) const {
  const auto inv = [&](int64_t c) -> double { return of_.inv_std[c]; };
  const auto slope_of = [&](int64_t c) {
    return total.dyx[c] * inv(c) * inv(c) / count();
  };
  const auto mean = ForColumns([&](int64_t c) { return of_.mean[c]; });
  const auto slope = ForColumns(slope_of);
  const auto shift = ForColumns([&](int64_t c) {
    return total.dy[c] / count() - total.x[c] * slope_of(c);
  });
  const auto scale =
      ForColumns([&](int64_t c) { return of_.gamma[c] * inv(c); });
  const auto gradient = kernels_.gradient[type_];
  return source_.Run(
      parallel_, source_.ranges(), Source::kCyclesPerRange,
      [&](int64_t begin, int64_t end, FirstFailure* failure) {
        source_.ForStrips(begin, end, failure, [&](const Strip& strip) {
          ForPanels(strip,
                    [&](const BatchNormPanel& p, int64_t j, int64_t offset) {
                      gradient(p,
                               {mean.data() + j, slope.data() + j,
                                shift.data() + j, scale.data() + j},
                               dx + offset * item_);
                    });
        });
      });
}

uint32_t HeaderChannels(const uint8_t* stream) {
  StreamHeader h;
  std::memcpy(&h, stream, sizeof h);
  return h.channels;
}

Status CheckArguments(const void* dy, const BatchNormChannels& of, int64_t n,
                      const void* dx, const float* dgamma, const float* dbeta) {
  if (of.channels < 1) {
    return Status::Invalid(
        "batch normalization: channels must be positive, "
        "got " +
        std::to_string(of.channels));
  }
  if (of.gamma == nullptr || of.mean == nullptr || of.inv_std == nullptr ||
      dgamma == nullptr || dbeta == nullptr ||
      ((dy == nullptr || dx == nullptr) && n > 0)) {
    return Status::Invalid(
        "batch normalization: no array may be null when it has elements");
  }
  return {};
}

template <class Source>
Status GradientFrom(const Source& source, const void* dy,
                    const BatchNormChannels& of, const NormGradients& out,
                    const ParallelFor& parallel, Isa isa) {
  if (source.n() == 0) {
    std::fill(out.dgamma, out.dgamma + of.channels, 0.0f);
    std::fill(out.dbeta, out.dbeta + of.channels, 0.0f);
    return {};
  }
  return Gradient<Source>(source, of, dy, parallel, isa)
      .Run(out.dx, out.dgamma, out.dbeta);
}

}  // namespace

constexpr BatchNormKernels kBatchNormKernelsScalar =
    BatchNormTable<BatchNormOne>();

Status BatchNormGradient(const StreamIn& stream, const void* dy,
                         const BatchNormChannels& of, const NormGradients& out,
                         const ParallelFor& parallel, Isa isa) {
  Status s = CheckIsa(CodecId::kPlane, isa);
  if (!s.ok()) return s;
  plane::StreamView v;
  s = plane::OpenValues(stream.data, stream.bytes, stream.dtype, stream.n, &v);
  if (!s.ok()) return s;
  s = CheckArguments(dy, of, stream.n, out.dx, out.dgamma, out.dbeta);
  if (!s.ok()) return s;
  if (stream.n > 0 && HeaderChannels(stream.data) != of.channels) {
    return Status::Invalid(
        "plane stream: header field channels must be the number of "
        "channels "
        "normalized, " +
        std::to_string(of.channels) + ", got " +
        std::to_string(HeaderChannels(stream.data)));
  }
  return GradientFrom(StreamSource{v, isa}, dy, of, out, parallel, isa);
}

Status BatchNormGradientOf(const TensorIn& x_hat, const void* dy,
                           const BatchNormChannels& of,
                           const NormGradients& out,
                           const ParallelFor& parallel, Isa isa) {
  Status s = CheckIsa(CodecId::kPlane, isa);
  if (!s.ok()) return s;
  s = CheckArguments(dy, of, x_hat.n, out.dx, out.dgamma, out.dbeta);
  if (!s.ok()) return s;
  if (x_hat.n < 0 || x_hat.n % of.channels != 0 ||
      (x_hat.data == nullptr && x_hat.n > 0)) {
    return Status::Invalid(
        "batch normalization: x_hat must have a multiple of " +
        std::to_string(of.channels) + " elements, its channels, got " +
        std::to_string(x_hat.n));
  }
  return GradientFrom(
      TensorSource{static_cast<const uint8_t*>(x_hat.data), x_hat.dtype,
                   x_hat.n, BatchNormKernelsOf(isa)},
      dy, of, out, parallel, isa);
}

void BatchNormGradientOfFixedRate(const FixedRateStream& stream, const void* dy,
                                  const BatchNormChannels& of,
                                  const NormGradients& out,
                                  const ParallelFor& parallel, Isa isa) {
  const FixedRateDecoder decoder(stream, isa);
  const FixedRateSource source{decoder, stream.of.dtype,
                               ElementsOf(stream.of.dims)};
  GradientFrom(source, dy, of, out, parallel, isa);
}

}  // namespace comptrain
