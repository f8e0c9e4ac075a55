// How values of 1 to 8 bits share bytes.
#ifndef TF_COMPTRAIN_CC_KERNELS_XLA_PACKING_H_
#define TF_COMPTRAIN_CC_KERNELS_XLA_PACKING_H_

#include <cstdint>
#include <vector>

#include "cc/kernels/xla/fence.h"
#include "cc/kernels/xla/hlo.h"

namespace comptrain {
namespace hlo {

// A group of values takes one byte, or three, and the k-th bytes of all groups
// make an array with the dimensions of the values, one of them divided by
// `group`. Value i * packed + j of the axis is in group j, at bit i * bits:
// neighbours in memory stay neighbours, so packing is elementwise in any layout
// and XLA fuses it; also with reductions of Folded values, which have the same
// shape.
struct Packing {
  std::vector<int64_t> dims;  // of the values
  int bits, group, bytes;     // bytes a group
  int axis = 0;
  int64_t packed = 0;  // groups along the axis

  Packing(absl::Span<const int64_t> of, int bits_a_value)
      : dims(of.begin(), of.end()), bits(bits_a_value) {
    if (dims.empty()) dims.push_back(1);
    bytes = 8 % bits == 0 ? 1 : 3;
    group = 8 * bytes / bits;
    double least = 0;
    for (int d = 0; d < static_cast<int>(dims.size()); ++d) {
      const int64_t groups = (dims[d] + group - 1) / group;
      const double cost =
          dims[d] == 0 ? 1 : static_cast<double>(groups * group) / dims[d];
      if (packed == 0 || cost < least) {
        axis = d;
        packed = groups;
        least = cost;
      }
    }
  }

  // The bytes of codes below 2^bits: `bytes` arrays.
  std::vector<XlaOp> Pack(XlaOp codes) const {
    const std::vector<XlaOp> members =
        Members(xla::ConvertElementType(codes, xla::U8));
    std::vector<XlaOp> packed_bytes;
    for (int k = 0; k < bytes; ++k) {
      XlaOp byte = Shifted(members[8 * k / bits], 8 * k / bits * bits - 8 * k);
      for (int i = 8 * k / bits + 1; i * bits < 8 * (k + 1); ++i) {
        byte = xla::Or(byte, Shifted(members[i], i * bits - 8 * k));
      }
      packed_bytes.push_back(byte);
    }
    return packed_bytes;
  }

  // The codes again, of an unsigned type.
  XlaOp Unpack(bool on_cpu, const std::vector<XlaOp>& packed_bytes) const {
    xla::XlaBuilder* b = packed_bytes[0].builder();
    const xla::PrimitiveType type = bytes == 1 ? xla::U8 : xla::U32;
    auto word = [&](int value) {
      return xla::ConstantR0WithType(b, type, value);
    };
    XlaOp words = xla::ConvertElementType(packed_bytes[0], type);
    for (int k = 1; k < bytes; ++k) {
      words = xla::Or(
          words, xla::ShiftLeft(xla::ConvertElementType(packed_bytes[k], type),
                                word(8 * k)));
    }
    // XLA's CPU compiler would put the word of each code together anew.
    if (on_cpu && bytes > 1) words = Fence(on_cpu, {words})[0];
    std::vector<int64_t> shape = dims, kept(dims.size());
    shape[axis] = packed;
    for (int d = 0; d < static_cast<int>(kept.size()); ++d) {
      kept[d] = d < axis ? d : d + 1;
    }
    shape.insert(shape.begin() + axis, group);
    const XlaOp shift =
        xla::Iota(b, xla::ShapeUtil::MakeShape(type, shape), axis) * word(bits);
    XlaOp codes = xla::And(
        xla::ShiftRightLogical(xla::BroadcastInDim(words, shape, kept), shift),
        word((1 << bits) - 1));
    shape.erase(shape.begin() + axis);
    shape[axis] = packed * group;
    return xla::SliceInDim(xla::Reshape(codes, shape), 0, dims[axis], 1, axis);
  }

  // The arrays of Pack as the one that ops exchange, and again. XLA drops the
  // pair.
  XlaOp Joined(const std::vector<XlaOp>& packed_bytes) const {
    if (bytes == 1) return packed_bytes[0];
    return xla::ConcatInDim(packed_bytes[0].builder(), packed_bytes, axis);
  }
  std::vector<XlaOp> Parts(XlaOp stream) const { return Cut(stream, bytes); }

  // Combines the members of each group, which are filled up with zeros:
  // reductions do not always fuse with what computes their operand, which would
  // then be a tensor.
  template <class Combine>
  XlaOp Folded(XlaOp x, const Combine& combine) const {
    const std::vector<XlaOp> members = Members(x);
    XlaOp all = members[0];
    for (size_t i = 1; i < members.size(); ++i) all = combine(all, members[i]);
    return all;
  }

  // Of what Joined returns and Parts takes.
  std::vector<int64_t> stream_dims() const {
    std::vector<int64_t> shape = dims;
    shape[axis] = bytes * packed;
    return shape;
  }

 private:
  // The members of all groups: the i-th of each.
  std::vector<XlaOp> Members(XlaOp x) const {
    x = xla::Reshape(x, dims);
    const int64_t spare = packed * group - dims[axis];
    if (spare > 0) {
      x = xla::PadInDim(
          x, xla::Zero(x.builder(), x.builder()->GetShape(x)->element_type()),
          axis, 0, spare);
    }
    return Cut(x, group);
  }
  std::vector<XlaOp> Cut(XlaOp x, int parts) const {
    std::vector<XlaOp> cut;
    for (int i = 0; i < parts; ++i) {
      cut.push_back(xla::SliceInDim(x, i * packed, (i + 1) * packed, 1, axis));
    }
    return cut;
  }
  // Bytes, shifted left.
  static XlaOp Shifted(XlaOp byte, int by) {
    const auto amount = [&](int n) {
      return xla::ConstantR0<uint8_t>(byte.builder(), n);
    };
    return by < 0 ? xla::ShiftRightLogical(byte, amount(-by))
                  : xla::ShiftLeft(byte, amount(by));
  }
};

}  // namespace hlo
}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_KERNELS_XLA_PACKING_H_
