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

// The packed array has the dimensions of the values with one of them divided by
// `group`, and, where a group takes three bytes, a last dimension of 3. Value
// i * packed + j of the axis is in group j, at bit i * bits: neighbours in memory
// stay neighbours, so packing is elementwise in any layout and XLA fuses it.
struct Packing {
  std::vector<int64_t> dims;  // of the values
  int bits, group, bytes;     // bytes a group
  int axis = 0;
  int64_t packed = 0;  // groups along the axis

  Packing(absl::Span<const int64_t> of, int bits_a_value)
      : dims(of.begin(), of.end()), bits(bits_a_value) {
    if (dims.empty()) dims.push_back(1);
    bytes = bits == 3 || bits == 6 ? 3 : 1;
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

  xla::PrimitiveType word_type() const {
    return bytes == 1 ? xla::U8 : xla::U32;
  }

  // The members of all groups: the i-th of each, padded with zeros.
  std::vector<xla::XlaOp> Members(xla::XlaOp x) const {
    x = xla::Reshape(x, dims);
    const int64_t spare = packed * group - dims[axis];
    if (spare > 0) {
      x = xla::PadInDim(
          x, xla::Zero(x.builder(), x.builder()->GetShape(x)->element_type()),
          axis, 0, spare);
    }
    std::vector<xla::XlaOp> members;
    for (int i = 0; i < group; ++i) {
      members.push_back(
          xla::SliceInDim(x, i * packed, (i + 1) * packed, 1, axis));
    }
    return members;
  }

  // Codes below 2^bits, of any integer type.
  xla::XlaOp Pack(xla::XlaOp codes) const {
    xla::XlaBuilder* b = codes.builder();
    xla::XlaOp word;
    int shift_bits = 0;
    for (const xla::XlaOp& member :
         Members(xla::ConvertElementType(codes, word_type()))) {
      const xla::XlaOp part = xla::ShiftLeft(member, Word(b, shift_bits));
      word = shift_bits == 0 ? part : xla::Or(word, part);
      shift_bits += bits;
    }
    if (bytes == 1) return word;
    const std::vector<int64_t> shape = stream_dims();
    std::vector<int64_t> kept(dims.size());
    for (size_t d = 0; d < kept.size(); ++d) kept[d] = d;
    const xla::XlaOp shift =
        xla::Iota(b, xla::ShapeUtil::MakeShape(xla::U32, shape),
                  shape.size() - 1) *
        Word(b, 8);
    return xla::ConvertElementType(
        xla::And(xla::ShiftRightLogical(xla::BroadcastInDim(word, shape, kept),
                                        shift),
                 Word(b, 255)),
        xla::U8);
  }

  // The codes again, of word_type().
  xla::XlaOp Unpack(xla::XlaOp stream) const {
    xla::XlaBuilder* b = stream.builder();
    std::vector<int64_t> shape = dims;
    shape[axis] = packed;
    xla::XlaOp word = stream;
    if (bytes > 1) {
      const int last = dims.size();
      for (int i = 0; i < bytes; ++i) {
        const xla::XlaOp part = xla::ShiftLeft(
            xla::ConvertElementType(
                xla::Reshape(xla::SliceInDim(stream, i, i + 1, 1, last), shape),
                xla::U32),
            Word(b, 8 * i));
        word = i == 0 ? part : xla::Or(word, part);
      }
    }
    std::vector<int64_t> kept(dims.size());
    for (int d = 0; d < static_cast<int>(kept.size()); ++d) {
      kept[d] = d < axis ? d : d + 1;
    }
    shape.insert(shape.begin() + axis, group);
    const xla::XlaOp shift =
        xla::Iota(b, xla::ShapeUtil::MakeShape(word_type(), shape), axis) *
        Word(b, bits);
    xla::XlaOp codes = xla::And(
        xla::ShiftRightLogical(xla::BroadcastInDim(word, shape, kept), shift),
        Word(b, (1 << bits) - 1));
    shape.erase(shape.begin() + axis);
    shape[axis] = packed * group;
    return xla::SliceInDim(xla::Reshape(codes, shape), 0, dims[axis], 1, axis);
  }

  // Of what Pack returns and Unpack takes.
  std::vector<int64_t> stream_dims() const {
    std::vector<int64_t> shape = dims;
    shape[axis] = packed;
    if (bytes > 1) shape.push_back(bytes);
    return shape;
  }

 private:
  xla::XlaOp Word(xla::XlaBuilder* b, int value) const {
    return xla::ConstantR0WithType(b, word_type(), value);
  }
};

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

// The stream, to be read no earlier than gate, the incoming gradient, is there:
// one value of the gradient takes part, without effect, in the bytes. (An operand
// of a barrier that nothing reads is dropped.)
inline xla::XlaOp Gated(bool on_cpu, xla::XlaOp stream, xla::XlaOp gate) {
  xla::XlaBuilder* b = stream.builder();
  const xla::Shape shape = b->GetShape(gate).value();
  if (xla::ShapeUtil::ElementsIn(shape) == 0 ||
      !xla::primitive_util::IsFloatingPointType(shape.element_type())) {
    return stream;
  }
  const std::vector<int64_t> first(shape.dimensions().size(), 0),
      one(first.size(), 1);
  std::vector<xla::XlaOp> operands = {
      stream, xla::Reshape(xla::Slice(gate, first, one, one), {})};
  // On the CPU the stream came out of a call already.
  if (!on_cpu) operands = Fence(on_cpu, operands);
  const xla::XlaOp never =
      xla::Gt(operands[1], xla::MaxValue(b, shape.element_type()));  // infinity
  return xla::Or(operands[0],
                 xla::Broadcast(xla::ConvertElementType(never, xla::U8),
                                b->GetShape(stream)->dimensions()));
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_KERNELS_FIXED_RATE_XLA_H_
