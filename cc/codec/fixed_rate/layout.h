// Where the values, words, scales and centres of a stream of a fixed rate are.
#pragma once

#include <cstdint>
#include <vector>

#include "cc/codec/common/host_device.h"

namespace comptrain {

int64_t ElementsOf(const std::vector<int64_t>& dims);

// The values of a tensor by groups. Value i * groups + j of the axis is the
// i-th member of group j: neighbours in memory stay neighbours, so what is made
// of a group's members is elementwise in any layout.
struct GroupLayout {
  std::vector<int64_t> dims;  // of the values, at least one
  int size;                   // values a group
  int axis = 0;
  int64_t groups = 0;  // along the axis; the last member of some may be missing

  // Along the dimension where the fewest members are missing.
  GroupLayout(const std::vector<int64_t>& of, int values_a_group);
  GroupLayout(const std::vector<int64_t>& of, int along, int values_a_group);

  // Of what has one element a group, dims.
  std::vector<int64_t> group_dims() const { return SpreadDims({}); }
  // Of what has more: dimensions before the axis.
  std::vector<int64_t> SpreadDims(const std::vector<int64_t>& of_group) const;

  // Row-major. The values are `outer` blocks of `length`; in a block member i
  // of its groups is the row from i * row on, as long as that is within the
  // block.
  int64_t outer() const;
  int64_t row() const;
  int64_t length() const;
};

// Values that share a scale: at least 32 of one channel, where it has so many.
GroupLayout ScaleLayout(const std::vector<int64_t>& dims);

// Values whose codes are packed together, as FixedRateCoding has them: along
// one dimension, or all but the channels where rows would be short otherwise,
// which are worked on value after value.
GroupLayout WordLayout(const std::vector<int64_t>& dims);

// The coding of a value in a number of bits that is known before there are
// values. A stream has, for each 32 values, as many 32-bit words as a value has
// bits; the byte of the scale of each group of values; the centre of each
// channel, the upper half of a float. A word has as many whole codes as it
// holds; its spare bits have one bit each of the codes that are left.
struct FixedRateCoding {
  static constexpr int kPacked = 32;

  int bits = 8;
  // Code 0 is zero, and the others are 0, 1, ... steps. Else codes are the
  // middles between whole steps, as many below the centre as above: none is for
  // the centre.
  bool mid_rise = false;
  // The stream ends in a byte for each row: what its values are divided by
  // before they are encoded (stream/row_scales.h). Kernels of a GPU leave that
  // to cc/kernels/xla/streams.cc.
  bool row_scales = false;

  COMPTRAIN_HD float zero_level() const {
    return mid_rise ? 1 : (1 << (bits - 1)) - 0.5f;
  }
  COMPTRAIN_HD int last_code() const { return (1 << bits) - 1; }
  // Of NaN: the least that is not zero, or a middle one.
  COMPTRAIN_HD int code_of_nan() const {
    return mid_rise ? 1 : 1 << (bits - 1);
  }
  // The largest value whose error is half a step whatever its dither, in steps.
  COMPTRAIN_HD float reach() const { return last_code() - zero_level(); }
  int codes_a_word() const { return 32 / bits; }
  int spare_bits() const { return 32 % bits; }

  // Whether there is a centre for each channel, the last dimension.
  bool HasCentres(const std::vector<int64_t>& dims) const;
  int64_t WordBytes(const std::vector<int64_t>& dims) const;
  int64_t ScaleBytes(const std::vector<int64_t>& dims) const;
  int64_t RowBytes(const std::vector<int64_t>& dims) const;
  int64_t StreamBytes(const std::vector<int64_t>& dims) const;
  // Where those of rows begin, the last part.
  int64_t RowsAt(const std::vector<int64_t>& dims) const {
    return StreamBytes(dims) - RowBytes(dims);
  }
};

}  // namespace comptrain
