// The scales that channels of a tensor have of their own: found in a sample of
// it, written at the end of a stream, read again, and laid out for the loops.
//
// A channel's step is the stream's times a power of two, so that its bound is
// that of the stream times the same: |x - x_hat| <= eb 2^exponent, in every
// channel strictly. No exponent is above 0.
#pragma once

#include <cstdint>
#include <vector>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/status.h"
#include "cc/codec/stream/params.h"
#include "cc/codec/stream/quantizer.h"
#include "cc/codec/stream/scale_items.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

// What a sample of a tensor's rows says of its channels.
struct ChannelSample {
  std::vector<ChannelMoments> channels;  // empty: no scales of their own
  // Root of the mean variance of the channels about their own means, zeros
  // included; that of all values where there are no channels.
  double sigma = 0;
  // Sum of variances / sum of the shares of values that are not zero: the mean
  // square that a channel's own is compared with.
  double mean_square = 0;
};

// x: n values in rows of `channels`, host memory. Deterministic for any number
// of threads.
ChannelSample SampleChannels(const void* x, DType dtype, int64_t n,
                             int64_t channels, const ParallelFor& parallel);

// Exponents and centres of a tensor with a bound.
class OwnScales {
 public:
  OwnScales() = default;
  // params: all but `scales`.
  OwnScales(const ChannelSample& sample, const EncodeParams& params);

  // As long as this lives. Neither where all channels have the same scale.
  ChannelScales scales() const {
    return {exponents_.empty() ? nullptr : exponents_.data(),
            centres_.empty() ? nullptr : centres_.data()};
  }
  // Root of the mean square of the channels' bounds over that of the stream,
  // by values that are not zero.
  double rms_bound_over_eb() const { return rms_; }

 private:
  std::vector<int8_t> exponents_;
  std::vector<int16_t> centres_;
  double rms_ = 1;
};

// Writes what a stream ends in.
void PutScales(const ChannelScales& scales, int64_t channels, uint8_t* out);

// Reads it from the end of a stream, whose flags and channels are checked.
class StoredScales {
 public:
  Status Open(CodecId codec, const StreamHeader& h, const uint8_t* stream);
  ChannelScales scales() const;

 private:
  std::vector<int8_t> exponents_;
  std::vector<int16_t> centres_;
};

// Where the lanes of tiles or chunks are in a table of scales: groups of 32
// lanes one after the other; or, where rows are 32 values whatever their
// channels, the channels and as many of them again as a row reaches over.
struct LanePlaces {
  static constexpr int64_t kLanes = 32;

  LanePlaces() = default;
  LanePlaces(bool flat_view, int64_t n_groups, const ChannelScales& scales,
             int64_t channels)
      : flat(flat_view || !(scales.exponents || scales.centres)),
        groups(n_groups),
        period(!flat                                ? groups * kLanes
               : scales.exponents || scales.centres ? channels
                                                    : 1) {}

  int64_t entries() const { return flat ? period + kLanes - 1 : period; }
  // From a row of lanes to the next, less `period` where that is reached.
  int64_t advance() const { return flat ? FlatAdvance(period) : 0; }
  // Of tile or chunk `index`, whose first value is number `offset`.
  int64_t First(int64_t index, int64_t offset) const {
    return flat ? offset % period : index % groups * kLanes;
  }

  bool flat = true;  // all channels alike, too
  int64_t groups = 1;
  int64_t period = 1;
};

// The scales of lanes, in the order in which the loops of a codec meet them.
// Alive while its quantizers are used.
class ScaleTable {
 public:
  // channel_of(lane): in groups of 32.
  template <class ChannelOf>
  ScaleTable(const LanePlaces& lanes, const Quantizer& stream,
             const ChannelScales& scales, const ChannelOf& channel_of)
      : values_(3 * lanes.entries()), centres_(lanes.entries()) {
    for (int64_t i = 0; i < lanes.entries(); ++i) {
      const int64_t c = lanes.flat ? i % lanes.period : channel_of(i);
      Put(OfChannel(stream, scales.exponents ? scales.exponents[c] : 0,
                    scales.centres ? scales.centres[c] : 0),
          i, lanes.entries());
    }
  }
  ScaleTable() = default;

  Quantizer Of(const Quantizer& stream, const LanePlaces& lanes) const;

 private:
  void Put(const Quantizer& channel, int64_t at, int64_t entries);

  std::vector<float> values_;  // steps, inverses, bounds
  std::vector<int32_t> centres_;
  int32_t largest_centre_ = 0;
  bool verify_all_ = false;
};

}  // namespace comptrain
