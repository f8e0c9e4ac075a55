#include <algorithm>
#include <cfloat>
#include <cmath>

#include "cc/codec/fixed_rate/rows.h"
#include "cc/codec/fixed_rate/sample.h"
#include "cc/codec/fixed_rate/scale.h"
#include "cc/codec/fixed_rate/state.h"
#include "cc/codec/stream/quantize.h"

namespace comptrain {
namespace {

// Values that one thread finds the range of at a time.
constexpr int64_t kRangeValues = 8192;

struct Ends {
  float smallest = FLT_MAX, largest = -FLT_MAX;  // of no finite values
};

// One call.
class Encoder {
 public:
  Encoder(const FixedRateTensor& of, const void* x, const FixedRateOutput& out,
          const ParallelFor& parallel, Isa isa)
      : of_(of),
        x_(static_cast<const uint8_t*>(x)),
        item_(static_cast<int64_t>(ItemBytes(of.dtype))),
        rows_(of.coding.row_scales ? reinterpret_cast<int8_t*>(
                                         out.stream + of.coding.RowsAt(of.dims))
                                   : nullptr),
        row_scales_(of.dims.back(), rows_),
        parallel_(parallel),
        kernels_(FixedRateKernelsOf(isa)) {}

  void Run(const FixedRateInput& in, const FixedRateOutput& out) const {
    if (rows_ != nullptr) {
      const int64_t rows = of_.coding.RowBytes(of_.dims);
      FindRowScales({x_, of_.dtype, rows, of_.dims.back()}, parallel_, rows_);
    }
    const double range = in.bound.of_range ? Range() : 0;
    float next[kStateFields];
    WriteState(
        {in.bound, of_.coding.mid_rise, of_.coding.StreamBytes(of_.dims)},
        in.state, Sample(), range, next);
    const float step = StepOfScale1(next[kBoundUsed]);
    const std::vector<float> centres = Centres();
    WriteCentres(centres, out.stream);
    uint8_t* const scales = out.stream + of_.coding.WordBytes(of_.dims);
    WriteScales(step, centres, scales);
    if (in.group_statistics) OfGroups(scales, next);
    Factors factors(of_, scales, InverseStepsOfScales(step), centres, kernels_);
    WriteWords(factors, SeedOf(next), out.stream);
    std::copy(next, next + kStateFields, out.state);
  }

 private:
  // n values as floats: where they are, or in the buffer.
  const float* Given(int64_t first, int64_t n, float* buffer) const {
    const uint8_t* const at = x_ + first * item_;
    if (of_.dtype == DType::kF32) return reinterpret_cast<const float*>(at);
    kernels_.widen(at, of_.dtype, n, buffer);
    return buffer;
  }
  // Likewise, divided by the scales of their rows.
  const float* Values(int64_t first, int64_t n, float* buffer) const {
    const float* const given = Given(first, n, buffer);
    if (!row_scales_.Any(first, n)) return given;
    if (given != buffer) std::copy(given, given + n, buffer);
    row_scales_.Divide(first, n, buffer);
    return buffer;
  }

  // Finite values of a sample, with zeros for others: body(row), of one value a
  // channel.
  template <class Body>
  void ForSample(int64_t most, const Body& body) const {
    const std::vector<int64_t> strides = SampleStrides(of_.dims, most);
    const int64_t channels = of_.dims.back();
    const int last = static_cast<int>(of_.dims.size()) - 1;
    std::vector<int64_t> at(last, 0);
    std::vector<float> row(channels);
    for (int d = last; d >= 0;) {
      int64_t first = 0;
      for (int k = 0; k < last; ++k) first = first * of_.dims[k] + at[k];
      kernels_.widen(x_ + first * channels * item_, of_.dtype, channels,
                     row.data());
      if (row_scales_.Any(first * channels, channels)) {
        row_scales_.Divide(first * channels, channels, row.data());
      }
      for (float& v : row) v = std::isfinite(v) ? v : 0;
      body(row);
      for (d = last - 1; d >= 0; --d) {
        at[d] += strides[d];
        if (at[d] < of_.dims[d]) break;
        at[d] = 0;
      }
    }
  }

  SampleSums Sample() const {
    SampleSums sums;
    double first = 0;
    ForSample(kSample, [&](const std::vector<float>& row) {
      if (sums.count == 0) first = row[0];
      for (float v : row) sums.Add(v, CountsAsZero(v), first);
    });
    return sums;
  }

  std::vector<float> Centres() const {
    std::vector<float> centres;
    if (!of_.coding.HasCentres(of_.dims)) return centres;
    const int64_t channels = of_.dims.back();
    std::vector<double> sum(channels), squares(channels);
    double count = 0;
    ForSample(std::max(kSample, kSampleOfChannel * channels),
              [&](const std::vector<float>& row) {
                for (int64_t c = 0; c < channels; ++c) {
                  sum[c] += row[c];
                  squares[c] += static_cast<double>(row[c]) * row[c];
                }
                ++count;
              });
    for (int64_t c = 0; c < channels; ++c) {
      centres.push_back(BF16ToFloat(CentreOf(sum[c], squares[c], count)));
    }
    return centres;
  }

  // Of finite values.
  double Range() const {
    const int64_t n = ElementsOf(of_.dims);
    const int64_t parts = (n + kRangeValues - 1) / kRangeValues;
    std::vector<Ends> ends(parts);
    parallel_(parts, kRangeValues, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t first = part * kRangeValues;
        ends[part] = EndsOf(first, std::min(n - first, kRangeValues));
      }
    });
    Ends all;
    for (const Ends& each : ends) {
      all.smallest = std::min(all.smallest, each.smallest);
      all.largest = std::max(all.largest, each.largest);
    }
    const double range = static_cast<double>(all.largest) - all.smallest;
    return std::max(range, 0.0);
  }

  Ends EndsOf(int64_t first, int64_t n) const {
    float buffer[kStretch], low[kStretch], high[kStretch];
    Ends none, all;
    std::fill_n(low, kStretch, none.smallest);
    std::fill_n(high, kStretch, none.largest);
    for (int64_t done = 0; done < n; done += kStretch) {
      const int64_t count = std::min<int64_t>(kStretch, n - done);
      kernels_.ends(Values(first + done, count, buffer), count, low, high);
    }
    all.smallest = *std::min_element(low, low + kStretch);
    all.largest = *std::max_element(high, high + kStretch);
    return all;
  }

  void WriteCentres(const std::vector<float>& centres, uint8_t* stream) const {
    uint8_t* to = stream + of_.coding.WordBytes(of_.dims) +
                  of_.coding.ScaleBytes(of_.dims);
    for (float centre : centres) {
      const uint16_t half = FloatToBF16(centre);
      std::memcpy(to, &half, sizeof half);
      to += sizeof half;
    }
  }

  void WriteScales(float step, const std::vector<float>& centres,
                   uint8_t* scales) const {
    const Rows rows{ScaleLayout(of_.dims)};
    const float reach = step * of_.coding.reach();
    parallel_(rows.units(), int64_t{kStretch} * rows.size,
              [&](int64_t begin, int64_t end) {
                for (int64_t unit = begin; unit < end; ++unit) {
                  WriteScalesOf(Unit(rows, unit), rows, reach, centres, scales);
                }
              });
  }

  void WriteScalesOf(const Unit& unit, const Rows& rows, float reach,
                     const std::vector<float>& centres, uint8_t* scales) const {
    float buffer[kStretch], low[kStretch], high[kStretch];
    std::fill_n(low, kStretch, FLT_MAX);
    std::fill_n(high, kStretch, -FLT_MAX);
    for (int member = 0; member < rows.size; ++member) {
      const int64_t n = rows.there(member, unit.at, unit.n);
      if (n == 0) break;
      const int64_t first =
          unit.block * rows.length + member * rows.row + unit.at;
      kernels_.ends(Values(first, n, buffer), n, low, high);
    }
    const auto channels = static_cast<int64_t>(centres.size());
    for (int64_t i = 0; i < unit.n; ++i) {
      const float centre =
          channels == 0 ? 0 : centres[(unit.at + i) % channels];
      const float farthest = std::max(high[i] - centre, centre - low[i]);
      scales[unit.block * rows.row + unit.at + i] =
          ScaleCodeFor(farthest / reach);
    }
  }

  void OfGroups(const uint8_t* scales, float* state) const {
    int64_t counts[256] = {};
    const int64_t groups = of_.coding.ScaleBytes(of_.dims);
    for (int64_t g = 0; g < groups; ++g) ++counts[scales[g]];
    GroupSums sums;
    for (int k = 0; k < 256; ++k) {
      sums.Add(static_cast<uint8_t>(k), static_cast<double>(counts[k]));
    }
    sums.Write(state[kBoundUsed], state);
    state[kRmsBound] *= static_cast<float>(
        RmsOfRowScales(rows_, of_.coding.RowBytes(of_.dims)));
  }

  void WriteWords(const Factors& factors, uint32_t seed,
                  uint8_t* stream) const {
    const Rows rows{WordLayout(of_.dims)};
    const bool by_blocks = rows.together() > 1;
    auto* const words = reinterpret_cast<uint32_t*>(stream);
    parallel_(
        by_blocks ? Blocks::Units(rows) : rows.units(),
        int64_t{2} * kStretch * rows.size, [&](int64_t begin, int64_t end) {
          for (int64_t unit = begin; unit < end; ++unit) {
            if (by_blocks) {
              WriteWordsOf(Blocks(rows, unit), rows, factors, seed, words);
            } else {
              WriteWordsOf(Unit(rows, unit), rows, factors, seed, words);
            }
          }
        });
  }

  void WriteWordsOf(const Blocks& blocks, const Rows& rows,
                    const Factors& factors, uint32_t seed,
                    uint32_t* words) const {
    float buffer[kStretch];
    alignas(64) uint32_t dither[kStretch];
    Factors::Last last;
    alignas(64) uint32_t codes[FixedRateCoding::kPacked * kStretch];
    const int64_t begin = blocks.first * rows.length;
    const int64_t n = blocks.count * rows.length;
    for (int64_t done = 0; done < n; done += kStretch) {
      const int64_t first = begin + done;
      const int64_t count = std::min<int64_t>(kStretch, n - done);
      Stretch at = factors.Of(first, count, &last);
      WriteDither(rows, kernels_, seed, first, count, dither);
      at.dither = dither;
      kernels_.codes(of_.coding, at, Values(first, count, buffer),
                     codes + done);
    }
    for (int64_t b = 0; b < blocks.count; ++b) {
      kernels_.pack(of_.coding, codes + b * rows.length, rows.row, rows.row,
                    words + (blocks.first + b) * of_.coding.bits * rows.row,
                    rows.row);
    }
  }

  void WriteWordsOf(const Unit& unit, const Rows& rows, const Factors& factors,
                    uint32_t seed, uint32_t* words) const {
    float buffer[kStretch];
    alignas(64) uint32_t dither[kStretch];
    kernels_.dither(seed + NumberOf(rows, unit), unit.n, 0, dither);
    Factors::Last last;
    alignas(64) uint32_t codes[FixedRateCoding::kPacked * kStretch];
    for (int member = 0; member < rows.size; ++member) {
      uint32_t* const of_member = codes + member * kStretch;
      const int64_t in_block = member * rows.row + unit.at;
      const int64_t n = rows.there(member, unit.at, unit.n);
      std::fill(of_member + n, of_member + unit.n, 0);  // missing
      if (n == 0) continue;
      const int64_t first = unit.block * rows.length + in_block;
      Stretch at = factors.Of(first, n, &last);
      at.dither = dither;
      at.more = static_cast<uint32_t>(member) * kDitherTurn;
      kernels_.codes(of_.coding, at, Values(first, n, buffer), of_member);
    }
    kernels_.pack(of_.coding, codes, kStretch, unit.n,
                  words + unit.block * of_.coding.bits * rows.row + unit.at,
                  rows.row);
  }

  const FixedRateTensor& of_;
  const uint8_t* const x_;
  const int64_t item_;
  int8_t* const rows_;  // their scales, in the stream; null: none
  const RowScales row_scales_;
  const ParallelFor& parallel_;
  const FixedRateKernels& kernels_;
};

}  // namespace

void FixedRateEncode(const FixedRateTensor& of, const FixedRateInput& in,
                     const FixedRateOutput& out, const ParallelFor& parallel,
                     Isa isa) {
  Encoder(of, in.x, out, parallel, isa).Run(in, out);
}

}  // namespace comptrain
