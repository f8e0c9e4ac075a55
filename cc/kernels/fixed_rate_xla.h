// HLO of fixed-rate codes: how values of 1 to 8 bits share bytes, and in which
// order their readers run.
#ifndef TF_COMPTRAIN_CC_KERNELS_FIXED_RATE_XLA_H_
#define TF_COMPTRAIN_CC_KERNELS_FIXED_RATE_XLA_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace comptrain {

constexpr char kFenceTarget[] = "comptrain_fence";

// The operands again, each no earlier than all of them: XLA neither looks through
// nor moves what reads them ahead.
//
// XLA's GPU compiler keeps to an optimization barrier. Its CPU compiler drops
// barriers before it fuses operations, and would pack and unpack in one of them,
// with the whole tensor alive until then; it does not look into custom calls.
// Operand and result share memory there, so the call moves nothing.
inline std::vector<xla::XlaOp> Fence(bool on_cpu,
                                     const std::vector<xla::XlaOp>& operands) {
  xla::XlaBuilder* b = operands[0].builder();
  xla::XlaOp fence;
  if (on_cpu) {
    std::vector<xla::Shape> shapes;
    std::string sizes;
    std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>>
        same_memory;
    for (const xla::XlaOp& operand : operands) {
      const int64_t i = shapes.size();
      shapes.push_back(b->GetShape(operand).value());
      sizes += std::to_string(xla::ShapeUtil::ByteSizeOf(shapes.back())) + " ";
      same_memory.push_back({{i}, {i, {}}});
    }
    fence = xla::CustomCall(
        b, kFenceTarget, operands, xla::ShapeUtil::MakeTupleShape(shapes), sizes,
        /*has_side_effect=*/false, same_memory, /*literal=*/nullptr,
        xla::CustomCallSchedule::SCHEDULE_NONE,
        xla::CustomCallApiVersion::API_VERSION_STATUS_RETURNING_UNIFIED);
  } else {
    fence = xla::OptimizationBarrier(xla::Tuple(b, operands));
  }
  std::vector<xla::XlaOp> results;
  for (size_t i = 0; i < operands.size(); ++i) {
    results.push_back(xla::GetTupleElement(fence, i));
  }
  return results;
}

// The first element, a scalar.
inline xla::XlaOp FirstOf(xla::XlaOp x) {
  const xla::Shape shape = x.builder()->GetShape(x).value();
  const std::vector<int64_t> start(shape.dimensions().size(), 0), one(start.size(), 1);
  return xla::Reshape(xla::Slice(x, start, one, one), {});
}

// A group of values takes one byte, or three, and the k-th bytes of all groups make an
// array with the dimensions of the values, one of them divided by `group`. Value
// i * packed + j of the axis is in group j, at bit i * bits: neighbours in memory stay
// neighbours, so packing is elementwise in any layout and XLA fuses it; also with
// reductions of Folded values, which have the same shape.
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
  std::vector<xla::XlaOp> Pack(xla::XlaOp codes) const {
    const std::vector<xla::XlaOp> members =
        Members(xla::ConvertElementType(codes, xla::U8));
    std::vector<xla::XlaOp> packed_bytes;
    for (int k = 0; k < bytes; ++k) {
      xla::XlaOp byte = Shifted(members[8 * k / bits], 8 * k / bits * bits - 8 * k);
      for (int i = 8 * k / bits + 1; i * bits < 8 * (k + 1); ++i) {
        byte = xla::Or(byte, Shifted(members[i], i * bits - 8 * k));
      }
      packed_bytes.push_back(byte);
    }
    return packed_bytes;
  }

  // The codes again, of an unsigned type.
  xla::XlaOp Unpack(bool on_cpu, const std::vector<xla::XlaOp>& packed_bytes) const {
    xla::XlaBuilder* b = packed_bytes[0].builder();
    const xla::PrimitiveType type = bytes == 1 ? xla::U8 : xla::U32;
    auto word = [&](int value) { return xla::ConstantR0WithType(b, type, value); };
    xla::XlaOp words = xla::ConvertElementType(packed_bytes[0], type);
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
    const xla::XlaOp shift =
        xla::Iota(b, xla::ShapeUtil::MakeShape(type, shape), axis) * word(bits);
    xla::XlaOp codes = xla::And(
        xla::ShiftRightLogical(xla::BroadcastInDim(words, shape, kept), shift),
        word((1 << bits) - 1));
    shape.erase(shape.begin() + axis);
    shape[axis] = packed * group;
    return xla::SliceInDim(xla::Reshape(codes, shape), 0, dims[axis], 1, axis);
  }

  // The arrays of Pack as the one that ops exchange, and again. XLA drops the pair.
  xla::XlaOp Joined(const std::vector<xla::XlaOp>& packed_bytes) const {
    if (bytes == 1) return packed_bytes[0];
    return xla::ConcatInDim(packed_bytes[0].builder(), packed_bytes, axis);
  }
  std::vector<xla::XlaOp> Parts(xla::XlaOp stream) const {
    return Cut(stream, bytes);
  }

  // Combines the members of each group, which are filled up with zeros: reductions do
  // not always fuse with what computes their operand, which would then be a tensor.
  template <class Combine>
  xla::XlaOp Folded(xla::XlaOp x, const Combine& combine) const {
    const std::vector<xla::XlaOp> members = Members(x);
    xla::XlaOp all = members[0];
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
  std::vector<xla::XlaOp> Members(xla::XlaOp x) const {
    x = xla::Reshape(x, dims);
    const int64_t spare = packed * group - dims[axis];
    if (spare > 0) {
      x = xla::PadInDim(
          x, xla::Zero(x.builder(), x.builder()->GetShape(x)->element_type()),
          axis, 0, spare);
    }
    return Cut(x, group);
  }
  std::vector<xla::XlaOp> Cut(xla::XlaOp x, int parts) const {
    std::vector<xla::XlaOp> cut;
    for (int i = 0; i < parts; ++i) {
      cut.push_back(xla::SliceInDim(x, i * packed, (i + 1) * packed, 1, axis));
    }
    return cut;
  }
  // Bytes, shifted left.
  static xla::XlaOp Shifted(xla::XlaOp byte, int by) {
    const auto amount = [&](int n) {
      return xla::ConstantR0<uint8_t>(byte.builder(), n);
    };
    return by < 0 ? xla::ShiftRightLogical(byte, amount(-by))
                  : xla::ShiftLeft(byte, amount(by));
  }
};

// The parts of a stream, to be read no earlier than gate, the incoming gradient, is
// there: one value of the gradient takes part, without effect, in the bytes. (An
// operand of a barrier that nothing reads is dropped.)
inline std::vector<xla::XlaOp> Gated(bool on_cpu, std::vector<xla::XlaOp> parts,
                                     xla::XlaOp gate) {
  xla::XlaBuilder* b = gate.builder();
  const xla::Shape shape = b->GetShape(gate).value();
  if (xla::ShapeUtil::ElementsIn(shape) == 0 ||
      !xla::primitive_util::IsFloatingPointType(shape.element_type())) {
    return parts;
  }
  xla::XlaOp never = xla::ConvertElementType(
      xla::Gt(FirstOf(gate), xla::MaxValue(b, shape.element_type())),  // infinity
      xla::U8);
  // On the CPU the stream came out of a call already.
  if (!on_cpu) {
    parts.push_back(never);
    parts = Fence(on_cpu, parts);
    never = parts.back();
    parts.pop_back();
  }
  for (xla::XlaOp& part : parts) {
    part = xla::Or(
        part, xla::Broadcast(never, b->GetShape(part)->dimensions()));
  }
  return parts;
}

// The same for a reader of gate too, which is replaced by what it must read: that
// takes no kernel of its own. On the CPU the gate would be copied where others read it.
inline std::vector<xla::XlaOp> GatedWith(bool on_cpu, std::vector<xla::XlaOp> parts,
                                         xla::XlaOp* gate) {
  if (on_cpu) return Gated(on_cpu, std::move(parts), *gate);
  parts.push_back(*gate);
  parts = Fence(on_cpu, parts);
  *gate = parts.back();
  parts.pop_back();
  return parts;
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_KERNELS_FIXED_RATE_XLA_H_
