// Internal: a tensor of the fixed-rate codec as rows of stretches, and the
// decoder of one stretch.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "cc/codec/fixed_rate/dither.h"
#include "cc/codec/fixed_rate/fixed_rate.h"
#include "cc/codec/fixed_rate/kernels.h"
#include "cc/codec/stream/row_scales.h"

namespace comptrain {

// A group layout, counted once.
struct Rows {
  int64_t outer, row, length;
  int size;

  explicit Rows(const GroupLayout& of)
      : outer(of.outer()), row(of.row()), length(of.length()), size(of.size) {}

  // Stretches of a block, side by side in a row.
  int64_t stretches() const { return (row + kStretch - 1) / kStretch; }
  int64_t units() const { return outer * stretches(); }
  // Blocks that are worked on at a time, since their rows are short and no
  // member is missing: their values lie side by side. 1: none are.
  int64_t together() const {
    return size * row == length ? std::max<int64_t>(1, kStretch / row) : 1;
  }
  // Of n values from `at` of row `member` on those that the block has.
  int64_t there(int member, int64_t at, int64_t n) const {
    return std::clamp<int64_t>(length - member * row - at, 0, n);
  }
};

// The part of a row that is one unit of work.
struct Unit {
  int64_t block, at, n;

  Unit(const Rows& rows, int64_t number)
      : block(number / rows.stretches()),
        at(number % rows.stretches() * kStretch),
        n(std::min<int64_t>(kStretch, rows.row - at)) {}
};

// For dither, of the first member of the first group: all have numbers, missing
// ones too.
static inline uint32_t NumberOf(const Rows& rows, const Unit& unit) {
  return static_cast<uint32_t>(unit.block * rows.size * rows.row + unit.at);
}

// Blocks whose values lie side by side, as one unit of work.
struct Blocks {
  int64_t first, count;

  Blocks(const Rows& rows, int64_t number)
      : first(number * rows.together()),
        count(std::min(rows.together(), rows.outer - first)) {}

  static int64_t Units(const Rows& rows) {
    return (rows.outer + rows.together() - 1) / rows.together();
  }
};

// Of n values from place `first` on, of such blocks.
static inline void WriteDither(const Rows& rows,
                               const FixedRateKernels& kernels, uint32_t seed,
                               int64_t first, int64_t n, uint32_t* dither) {
  for (int64_t done = 0; done < n;) {
    const int64_t place = first + done, in_block = place % rows.length;
    const int64_t member = in_block / rows.row, before = member * rows.row;
    const int64_t count = std::min(n - done, before + rows.row - in_block);
    kernels.dither(seed + static_cast<uint32_t>(place - before), count,
                   static_cast<uint32_t>(member) * kDitherTurn, dither + done);
    done += count;
  }
}

// What values have in common with others of their group or channel, for
// stretches of a tensor.
class Factors {
 public:
  // One thread's: what the last stretch had. The same members of other groups
  // often follow, which have the same.
  struct Last {
    alignas(64) float factor[kStretch], centre[kStretch];
    int64_t scale = -1, scales = 0;     // the first, and how many
    int64_t channel = -1, centres = 0;  // likewise
  };

  // scales: of the groups. of_code: what a value of a group is multiplied by.
  // centres: of the channels; empty: none.
  Factors(const FixedRateTensor& of, const uint8_t* scales,
          std::vector<float> of_code, std::vector<float> centres,
          const FixedRateKernels& kernels)
      : rows_(ScaleLayout(of.dims)),
        scales_(scales),
        of_code_(std::move(of_code)),
        centres_(std::move(centres)),
        kernels_(kernels) {}

  // For n values from place `first` of the tensor, at most kStretch.
  Stretch Of(int64_t first, int64_t n, Last* last) const {
    LookUp(first, n, last);
    if (centres_.empty()) return {n, nullptr, 0, last->factor, nullptr};
    const auto channels = static_cast<int64_t>(centres_.size());
    const int64_t channel_of_first = first % channels;
    if (channel_of_first == last->channel && n <= last->centres) {
      return {n, nullptr, 0, last->factor, last->centre};
    }
    for (int64_t done = 0; done < n;) {
      const int64_t channel = (first + done) % channels;
      const int64_t count = std::min(n - done, channels - channel);
      std::memcpy(last->centre + done, centres_.data() + channel,
                  count * sizeof *last->centre);
      done += count;
    }
    last->channel = channel_of_first;
    last->centres = n;
    return {n, nullptr, 0, last->factor, last->centre};
  }

 private:
  void LookUp(int64_t first, int64_t n, Last* last) const {
    for (int64_t done = 0; done < n;) {
      const int64_t place = first + done, in_block = place % rows_.length;
      const int64_t in_row = in_block % rows_.row;
      const int64_t count =
          std::min({n - done, rows_.row - in_row, rows_.length - in_block});
      const int64_t scale = place / rows_.length * rows_.row + in_row;
      if (count == n) {
        if (scale == last->scale && n <= last->scales) return;
        last->scale = scale;
        last->scales = n;
      } else {
        last->scale = -1;
      }
      kernels_.look_up(scales_ + scale, count, of_code_.data(),
                       last->factor + done);
      done += count;
    }
  }

  const Rows rows_;
  const uint8_t* const scales_;
  const std::vector<float> of_code_, centres_;
  const FixedRateKernels& kernels_;
};

// Of each byte of a scale what a value is multiplied by to have it in units of
// the tensor's step, or the other way round.
std::vector<float> StepsOfScales(float step);
std::vector<float> InverseStepsOfScales(float step);

class FixedRateDecoder {
 public:
  FixedRateDecoder(const FixedRateStream& stream, Isa isa);

  // Units of work: stretches of words, or blocks.
  int64_t units() const {
    return rows_.together() > 1 ? Blocks::Units(rows_) : rows_.units();
  }

  // Calls body(first, n, codes) for the stretches of values of a unit: the
  // place of the first in the tensor, how many, and their codes.
  template <class Body>
  void ForCodes(int64_t number, const Body& body) const {
    alignas(64) uint32_t codes[FixedRateCoding::kPacked * kStretch];
    if (rows_.together() > 1) return ForBlocks(number, codes, body);
    ForMembers(Unit(rows_, number), codes,
               [&](int64_t first, int64_t n, const uint32_t* of_member, int) {
                 body(first, n, of_member);
               });
  }

  // As ForCodes, of values: body(first, n, x_hat). x_hat is 64-byte aligned.
  template <class Body>
  void ForValues(int64_t number, const Body& body) const {
    alignas(64) uint32_t codes[FixedRateCoding::kPacked * kStretch];
    alignas(64) uint32_t dither[kStretch];
    alignas(64) float x_hat[kStretch];
    Factors::Last last;
    const auto decode = [&](int64_t first, int64_t n, const uint32_t* from,
                            uint32_t more) {
      Stretch at = factors_.Of(first, n, &last);
      at.dither = dither;
      at.more = more;
      kernels_.values(coding_, at, from, x_hat);
      if (row_scales_.Any(first, n)) row_scales_.Multiply(first, n, x_hat);
      body(first, n, x_hat);
    };
    if (rows_.together() > 1) {
      ForBlocks(number, codes,
                [&](int64_t first, int64_t n, const uint32_t* from) {
                  WriteDither(rows_, kernels_, seed_, first, n, dither);
                  decode(first, n, from, 0);
                });
      return;
    }
    const Unit unit(rows_, number);
    kernels_.dither(seed_ + NumberOf(rows_, unit), unit.n, 0, dither);
    ForMembers(unit, codes,
               [&](int64_t first, int64_t n, const uint32_t* from, int member) {
                 decode(first, n, from,
                        static_cast<uint32_t>(member) * kDitherTurn);
               });
  }

  const FixedRateKernels& kernels() const { return kernels_; }

 private:
  // Calls body(first, n, codes, member).
  template <class Body>
  void ForMembers(const Unit& unit, uint32_t* codes, const Body& body) const {
    kernels_.unpack(coding_,
                    words_ + unit.block * coding_.bits * rows_.row + unit.at,
                    rows_.row, unit.n, codes, kStretch);
    for (int member = 0; member < rows_.size; ++member) {
      const int64_t n = rows_.there(member, unit.at, unit.n);
      if (n == 0) break;
      body(unit.block * rows_.length + member * rows_.row + unit.at, n,
           codes + member * kStretch, member);
    }
  }

  template <class Body>
  void ForBlocks(int64_t number, uint32_t* codes, const Body& body) const {
    const Blocks blocks(rows_, number);
    for (int64_t b = 0; b < blocks.count; ++b) {
      kernels_.unpack(
          coding_, words_ + (blocks.first + b) * coding_.bits * rows_.row,
          rows_.row, rows_.row, codes + b * rows_.length, rows_.row);
    }
    const int64_t first = blocks.first * rows_.length;
    const int64_t n = blocks.count * rows_.length;
    for (int64_t done = 0; done < n; done += kStretch) {
      body(first + done, std::min<int64_t>(kStretch, n - done), codes + done);
    }
  }

  const FixedRateCoding coding_;
  const FixedRateKernels& kernels_;
  const Rows rows_;
  const uint32_t* const words_;
  const uint32_t seed_;
  const Factors factors_;
  const RowScales row_scales_;
};

}  // namespace comptrain
