// Internal, for CUDA sources: where the parts of a stream of a fixed rate are,
// and any one of its values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/codec/common/divisor.h"
#include "cc/codec/common/half.h"
#include "cc/codec/common/host_device.h"
#include "cc/codec/fixed_rate/dither.h"
#include "cc/codec/fixed_rate/fixed_rate.h"
#include "cc/codec/fixed_rate/rows.h"
#include "cc/codec/fixed_rate/scale.h"

namespace comptrain::gpu {

constexpr char kFixedRate[] = "the fixed-rate codec on a GPU";  // in messages
constexpr int kPacked = FixedRateCoding::kPacked;

// Which of a group's values one is, and the place of the group.
struct Member {
  int64_t block, at;
  int member;
};

// A group layout, for threads.
struct RowsOnGpu {
  int64_t row, length, columns;  // columns: groups of all blocks
  Divisor by_row, by_length;

  explicit RowsOnGpu(const Rows& rows)
      : row(rows.row),
        length(rows.length),
        columns(rows.outer * rows.row),
        by_row(rows.row),
        by_length(rows.length) {}

  // Of the group that the value at a place of the tensor is in.
  COMPTRAIN_HD int64_t GroupOf(int64_t place) const {
    int64_t in_block, in_row;
    const int64_t block = by_length.Split(place, &in_block);
    by_row.Split(in_block, &in_row);
    return block * row + in_row;
  }
  COMPTRAIN_HD Member MemberAt(int64_t place) const {
    Member m;
    int64_t in_block;
    m.block = by_length.Split(place, &in_block);
    m.member = static_cast<int>(by_row.Split(in_block, &m.at));
    return m;
  }
  // For dither, of the first of kPacked members; missing ones have some, too.
  COMPTRAIN_HD uint32_t NumberOf(int64_t block, int64_t at) const {
    return static_cast<uint32_t>(block * kPacked * row + at);
  }
};

// From 0 to 255, by its bits: a GPU has few units that convert.
COMPTRAIN_HD static inline float FloatOfCode(uint32_t code) {
  return BitsFloat(0x4b000000 | code) - 0x1p23f;
}

// Columns side by side that a thread works on: what it loads, or stores, at
// once has 32 bits.
constexpr int ColumnsTogether(size_t item_bytes) {
  return 4 / static_cast<int>(item_bytes);
}

// A tensor and the places of its parts in a stream.
struct TensorOnGpu {
  FixedRateCoding coding;
  DType dtype;
  RowsOnGpu words, scales;
  int64_t last;  // the size of the last dimension, channels
  bool has_centres;
  // Whether the 32 values whose codes share words have one scale, and lie in
  // one channel.
  bool one_scale, one_channel;
  int64_t scales_at, centres_at;
  Divisor by_channels;

  explicit TensorOnGpu(const FixedRateTensor& of)
      : coding(of.coding),
        dtype(of.dtype),
        words(Rows(WordLayout(of.dims))),
        scales(Rows(ScaleLayout(of.dims))),
        last(of.dims.back()),
        has_centres(of.coding.HasCentres(of.dims)),
        one_scale(words.row == scales.row && words.length == scales.length),
        one_channel(words.length != last),
        scales_at(of.coding.WordBytes(of.dims)),
        centres_at(scales_at + of.coding.ScaleBytes(of.dims)),
        by_channels(last) {}

  // Whether columns (column.h) can be worked on: none has missing values, and
  // what lies side by side fills words of memory.
  bool even() const {
    return one_scale && (one_channel || !has_centres) &&
           words.length == kPacked * words.row &&
           words.row % ColumnsTogether(ItemBytes(dtype)) == 0;
  }

  COMPTRAIN_HD int64_t ChannelOf(int64_t place) const {
    int64_t channel;
    by_channels.Split(place, &channel);
    return channel;
  }
  COMPTRAIN_HD float Centre(const uint8_t* stream, int64_t place) const {
    if (!has_centres) return 0;
    const uint8_t* const at = stream + centres_at + 2 * ChannelOf(place);
    return BF16ToFloat(static_cast<uint16_t>(at[0] | at[1] << 8));
  }
};

// A stream, in the order of values.
struct StreamOnGpu {
  TensorOnGpu of;
  const uint8_t* data;
  const float* state;  // null where codes are all that is read

  explicit StreamOnGpu(const FixedRateStream& stream)
      : of(stream.of), data(stream.data), state(stream.state) {}

  COMPTRAIN_HD float StepAt(int64_t place) const {
    return StepOfGroup(of.scales.GroupOf(place));
  }
  COMPTRAIN_HD float StepOfGroup(int64_t group) const {
    return ScaleOf(data[of.scales_at + group]) *
           StepOfScale1(state[kBoundUsed]);
  }
  COMPTRAIN_HD uint32_t Word(int64_t number) const {
    return reinterpret_cast<const uint32_t*>(data)[number];
  }

  // Of any value, wherever it lies.
  COMPTRAIN_HD uint32_t CodeAt(int64_t place) const {
    return CodeOf(of.words.MemberAt(place));
  }
  COMPTRAIN_HD uint32_t CodeOf(const Member& m) const {
    const FixedRateCoding& coding = of.coding;
    const int member = m.member;
    const int bits = coding.bits, codes = 32 / bits, left = 32 % bits;
    const int64_t row = of.words.row, first = m.block * bits * row + m.at;
    if (member < kPacked - left) {
      return Word(first + member / codes * row) >> (member % codes * bits) &
             static_cast<uint32_t>(coding.last_code());
    }
    uint32_t code = 0;
    for (int w = 0; w < bits; ++w) {
      const int bit = codes * bits + member - (kPacked - left);
      code |= (Word(first + w * row) >> bit & 1) << w;
    }
    return code;
  }
  COMPTRAIN_HD float ValueAt(int64_t place) const {
    const Member m = of.words.MemberAt(place);
    const uint32_t code = CodeOf(m);
    if (of.coding.mid_rise && code == 0) return 0;
    const uint32_t start =
        DitherStart(of.words.NumberOf(m.block, m.at) + SeedOf(state));
    const float offset =
        DitherPlus(of.coding.zero_level(),
                   start + static_cast<uint32_t>(m.member) * kDitherTurn);
    const float v = (FloatOfCode(code) - offset) * StepAt(place);
    return of.has_centres ? v + of.Centre(data, place) : v;
  }
};

}  // namespace comptrain::gpu
