#include "cc/codec/stream/scales.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "cc/codec/stream/check_stream.h"

namespace comptrain {
namespace {

constexpr int64_t kBlock = 64;  // channels whose sums are kept at hand
constexpr int64_t kCyclesPerValue = 2;

template <class Sum>
struct BlockSums {
  Sum sum[kBlock] = {}, sum_sq[kBlock] = {};
  int32_t nonzero[kBlock] = {};
  float first[kBlock];
};

// A function of its own: where it is inlined, GCC adds two rows at a time up,
// which then are not in vectors.
template <class Sum, class T>
__attribute__((noinline)) void AddRow(const T* row, int64_t count,
                                      BlockSums<Sum>* sums) {
  for (int64_t c = 0; c < count; ++c) {
    AddToSums(ToFloat(row[c]), sums->first[c], sums->sum + c, sums->sum_sq + c,
              sums->nonzero + c);
  }
}

// Of the first `count` channels of rows of `channels` values. Those that
// float32 has held already are left, where Sum is double.
template <class Sum, class T>
void SumBlock(const T* x, const SampledRows& rows, int64_t channels,
              int64_t count, ChannelMoments* moments) {
  BlockSums<Sum> sums;
  for (int64_t c = 0; c < count; ++c) {
    sums.first[c] = FiniteOrZero(ToFloat(x[rows.Row(0) * channels + c]));
  }
  for (int64_t i = 0; i < rows.count; ++i) {
    AddRow(x + rows.Row(i) * channels, count, &sums);
  }
  for (int64_t c = 0; c < count; ++c) {
    if (sizeof(Sum) > sizeof(float) && moments[c].IsFinite()) continue;
    moments[c] = MomentsOf(sums.sum[c], sums.sum_sq[c], sums.nonzero[c],
                           sums.first[c], rows.count);
  }
}

template <class Term>
double AddUp(const std::vector<ChannelMoments>& of, const Term& term) {
  double sums[kPartialSums] = {};
  for (size_t i = 0; i < of.size(); ++i) sums[i % kPartialSums] += term(of[i]);
  for (int half = kPartialSums / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

template <class T>
void Append(const T* values, int64_t count, uint8_t** out) {
  const uint64_t bytes = sizeof(T) * static_cast<uint64_t>(count);
  std::memset(*out + AlignWord(bytes) - 4, 0, 4);
  std::memcpy(*out, values, bytes);
  *out += AlignWord(bytes);
}

}  // namespace

ChannelSample SampleChannels(const void* x, DType dtype, int64_t n,
                             int64_t channels, const ParallelFor& parallel) {
  ChannelSample sample;
  if (n == 0) return sample;
  const bool own = HasOwnScales(n, channels);
  if (!own) channels = 1;
  const SampledRows rows(n / channels, channels);
  std::vector<ChannelMoments> moments(channels);
  parallel((channels + kBlock - 1) / kBlock,
           kCyclesPerValue * kBlock * rows.count,
           [&](int64_t begin, int64_t end) {
             for (int64_t c = begin * kBlock;
                  c < std::min(channels, end * kBlock); c += kBlock) {
               const int64_t count = std::min(kBlock, channels - c);
               ChannelMoments* const to = moments.data() + c;
               WithStorageType(dtype, [&](auto type) {
                 using T = decltype(type);
                 const T* const from = static_cast<const T*>(x) + c;
                 SumBlock<float>(from, rows, channels, count, to);
                 // Squares beyond float32.
                 if (!std::all_of(to, to + count, [](const ChannelMoments& m) {
                       return m.IsFinite();
                     })) {
                   SumBlock<double>(from, rows, channels, count, to);
                 }
               });
             }
           });
  const double variance =
      AddUp(moments, [](const ChannelMoments& m) { return m.variance; });
  const double nonzero =
      AddUp(moments, [](const ChannelMoments& m) { return m.nonzero; });
  sample.sigma = std::sqrt(variance / static_cast<double>(channels));
  sample.mean_square = nonzero > 0 ? variance / nonzero : 0;
  if (own) sample.channels = std::move(moments);
  return sample;
}

OwnScales::OwnScales(const ChannelSample& sample, const EncodeParams& params) {
  const Quantizer stream = QuantizerOf(params);
  const size_t channels = sample.channels.size();
  exponents_.resize(channels);
  centres_.resize(channels);
  bool scaled = false, centred = false;
  double sum = 0, weight = 0;
  for (size_t c = 0; c < channels; ++c) {
    const ChannelMoments& m = sample.channels[c];
    const int exponent = ExponentOf(m, sample.mean_square, stream);
    const int centre = CentreOf(m, exponent, stream);
    exponents_[c] = static_cast<int8_t>(exponent);
    centres_[c] = static_cast<int16_t>(centre);
    scaled |= exponent != 0;
    centred |= centre != 0;
    sum += m.nonzero * std::ldexp(1.0, 2 * exponent);
    weight += m.nonzero;
  }
  if (scaled && weight > 0) rms_ = std::sqrt(sum / weight);
  if (!scaled) exponents_.clear();
  if (!centred) centres_.clear();
}

void PutScales(const ChannelScales& scales, int64_t channels, uint8_t* out) {
  if (scales.exponents) Append(scales.exponents, channels, &out);
  if (scales.centres) Append(scales.centres, channels, &out);
}

Status StoredScales::Open(CodecId codec, const StreamHeader& h,
                          const uint8_t* stream) {
  const uint64_t channels = h.channels;
  const uint64_t bytes = ScaleBytes(h.flags, channels);
  if (bytes > h.total_bytes - sizeof h) {
    return BadField(codec, "its end", "the scales of all channels",
                    std::to_string(h.total_bytes) + " bytes in all");
  }
  const uint8_t* from = stream + h.total_bytes - bytes;
  const uint8_t* const centres = from + ExponentBytes(h.flags, channels);
  const uint8_t* const end = stream + h.total_bytes;
  if (h.flags & kExponents) {
    exponents_.resize(channels);
    std::memcpy(exponents_.data(), from, channels);
    if (!AllZero(from + channels, centres)) {
      return BadField(codec, "padding of exponents", "zero", "other bytes");
    }
    for (const int8_t e : exponents_) {
      if (!ExponentIsRight(h.step, e)) {
        return BadField(codec, "an exponent",
                        "one whose step and inverse are normal numbers",
                        std::to_string(e));
      }
    }
  }
  if (h.flags & kCentres) {
    centres_.resize(channels);
    std::memcpy(centres_.data(), centres, 2 * channels);
    if (!AllZero(centres + 2 * channels, end)) {
      return BadField(codec, "padding of centres", "zero", "other bytes");
    }
  }
  return {};
}

ChannelScales StoredScales::scales() const {
  return {exponents_.empty() ? nullptr : exponents_.data(),
          centres_.empty() ? nullptr : centres_.data()};
}

void ScaleTable::Put(const Quantizer& channel, int64_t at, int64_t entries) {
  values_[at] = channel.step;
  values_[at + entries] = channel.inv;
  values_[at + 2 * entries] = channel.eb;
  centres_[at] = channel.centre;
  largest_centre_ = std::max(largest_centre_, std::abs(channel.centre));
  verify_all_ |= channel.verify_all;
}

Quantizer ScaleTable::Of(const Quantizer& stream,
                         const LanePlaces& lanes) const {
  Quantizer q = stream;
  const int64_t entries = lanes.entries();
  q.lanes.step = values_.data();
  q.lanes.inv = values_.data() + entries;
  q.lanes.eb = values_.data() + 2 * entries;
  q.lanes.centre = centres_.data();
  q.lanes.advance = static_cast<int32_t>(lanes.advance());
  q.lanes.period = static_cast<int32_t>(lanes.period);
  q.centre = largest_centre_;
  q.verify_all = verify_all_;
  return q;
}

}  // namespace comptrain
