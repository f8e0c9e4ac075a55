// How values of 1 to 8 bits share bytes and words.
#pragma once

#include <cstdint>
#include <vector>

#include "cc/codec/fixed_rate/layout.h"
#include "cc/kernels/xla/hlo.h"

namespace comptrain::hlo {

// The values of a tensor by groups, as operations.
struct Groups : GroupLayout {
  Groups(absl::Span<const int64_t> of, int values_a_group)
      : GroupLayout({of.begin(), of.end()}, values_a_group) {}

  // The members of all groups: the i-th of each. Missing ones are zero.
  std::vector<XlaOp> Members(XlaOp x) const {
    x = Padded(x);
    std::vector<XlaOp> members;
    for (int i = 0; i < size; ++i) {
      members.push_back(
          xla::SliceInDim(x, i * groups, (i + 1) * groups, 1, axis));
    }
    return members;
  }

  // The values, of what has a dimension of all members before the axis.
  XlaOp Values(XlaOp spread) const {
    std::vector<int64_t> shape = dims;
    shape[axis] = groups * size;
    return xla::SliceInDim(xla::Reshape(spread, shape), 0, dims[axis], 1, axis);
  }

  // What has one element a group, for all members of each.
  XlaOp Spread(XlaOp of_groups) const {
    std::vector<int64_t> shape = Dims(of_groups), kept(shape.size());
    for (int d = 0; d < static_cast<int>(kept.size()); ++d) {
      kept[d] = d < axis ? d : d + 1;
    }
    shape.insert(shape.begin() + axis, size);
    return xla::BroadcastInDim(of_groups, shape, kept);
  }
  // Which member of its group each of those is, in their type.
  XlaOp Number(XlaOp spread) const {
    return xla::Iota(spread.builder(),
                     spread.builder()->GetShape(spread).value(), axis);
  }

 private:
  XlaOp Padded(XlaOp x) const {
    x = xla::Reshape(x, dims);
    const int64_t missing = groups * size - dims[axis];
    return missing == 0 ? x : xla::PadInDim(x, ZeroOf(x), axis, 0, missing);
  }
};

inline XlaOp LeftShifted(XlaOp x, int by) {
  return xla::ShiftLeft(x, xla::FullLike(x, by));
}

inline XlaOp Times(XlaOp x, int factor) { return x * xla::FullLike(x, factor); }

// Codes of 1, 2, 4 or 8 bits, as many in a byte as it holds.
struct Packing {
  int bits;
  Groups bytes;

  Packing(absl::Span<const int64_t> dims, int bits_a_code)
      : bits(bits_a_code), bytes(dims, 8 / bits_a_code) {}

  XlaOp Pack(XlaOp codes) const {
    const std::vector<XlaOp> members =
        bytes.Members(xla::ConvertElementType(codes, xla::U8));
    XlaOp packed = members[0];
    for (int i = 1; i < bytes.size; ++i) {
      packed = xla::Or(packed, LeftShifted(members[i], i * bits));
    }
    return packed;
  }

  XlaOp Unpack(XlaOp packed) const {
    const XlaOp spread = bytes.Spread(packed);
    const XlaOp codes =
        xla::ShiftRightLogical(spread, Times(bytes.Number(spread), bits));
    return bytes.Values(xla::And(codes, xla::FullLike(codes, (1 << bits) - 1)));
  }
};

}  // namespace comptrain::hlo
