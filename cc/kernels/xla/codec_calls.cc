#include "cc/kernels/xla/codec_calls.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "cc/codec/fixed_rate_gpu/gpu.h"
#include "cc/codec/layers/batch_norm_gpu.h"
#include "cc/kernels/xla/call_targets.h"
#include "cc/kernels/xla/fence.h"

namespace comptrain::hlo {
namespace {

std::string Attributes(const FixedRateCoding& coding) {
  return absl::StrFormat("bits = %d : i32, mid_rise = %d : i32", coding.bits,
                         coding.mid_rise);
}

std::string Attributes(const FixedRateCoding& coding, const Encoding& how) {
  return absl::StrFormat(
      "%s, relative_bound = %.9e : f32, decay = %.9e : f32, of_range = %d : "
      "i32, group_statistics = %d : i32",
      Attributes(coding), how.bound.relative_bound, how.bound.decay,
      how.bound.of_range, how.group_statistics);
}

xla::Shape RowMajor(const xla::Shape& shape) {
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(shape.element_type(),
                                                       shape.dimensions());
}
xla::Shape RowMajorShapeOf(XlaOp op) {
  return RowMajor(op.builder()->GetShape(op).value());
}

struct Call {
  const char* target;
  std::string attributes;
  std::vector<XlaOp> operands;
  // Of the first result: the operand whose place it takes; below 0: none.
  int64_t in_place_of = -1;
};

std::vector<XlaOp> Made(const Call& call, std::vector<xla::Shape> results) {
  std::vector<xla::Shape> shapes;
  for (const XlaOp& operand : call.operands) {
    shapes.push_back(RowMajorShapeOf(operand));
  }
  const bool is_one = results.size() == 1;
  const xla::Shape shape =
      is_one ? results[0] : xla::ShapeUtil::MakeTupleShape(results);
  std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>>
      aliases;
  if (call.in_place_of >= 0) {
    aliases.push_back({is_one ? xla::ShapeIndex{} : xla::ShapeIndex{0},
                       {call.in_place_of, {}}});
  }
  const XlaOp made = xla::CustomCallWithLayout(
      call.operands[0].builder(), call.target, call.operands, shape, shapes,
      absl::StrFormat("{%s}", call.attributes), /*has_side_effect=*/false,
      aliases, /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  if (is_one) return {made};
  std::vector<XlaOp> parts;
  for (size_t i = 0; i < results.size(); ++i) {
    parts.push_back(xla::GetTupleElement(made, static_cast<int64_t>(i)));
  }
  return parts;
}

// Of a call: memory that it works in, at its end.
xla::Shape Memory(size_t bytes) {
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(
      xla::U8, {static_cast<int64_t>(bytes)});
}

}  // namespace

Encoded CodecCalls::Encode(const Encoding& how, XlaOp x, XlaOp state) const {
  std::vector<int64_t> dims = Dims(x);
  if (dims.empty()) dims.push_back(1);
  std::vector<xla::Shape> results = {Memory(coding_.StreamBytes(dims)),
                                     RowMajorShapeOf(state)};
  if (!on_cpu_) results.push_back(Memory(kGpuFixedRateScratchBytes));
  const auto parts =
      Made({kEncode, Attributes(coding_, how), {x, state}}, std::move(results));
  return {parts[0], parts[1]};
}

XlaOp CodecCalls::Decode(XlaOp stream, XlaOp state, XlaOp gate,
                         const xla::Shape& shape) const {
  const std::string attributes = Attributes(coding_);
  if (on_cpu_) {
    stream = Gated(on_cpu_, {stream}, gate).front();
    return Made({kDecode, attributes, {stream, state}}, {RowMajor(shape)})[0];
  }
  std::vector<XlaOp> operands = {stream, state};
  if (Size(gate) > 0) operands.push_back(FirstOf(gate));
  return Made({kDecode, attributes, operands}, {RowMajor(shape)})[0];
}

XlaOp CodecCalls::MaskGradient(XlaOp stream, XlaOp dy) const {
  stream = After(&dy, stream);
  return Made({kMaskGradient, Attributes(coding_), {stream, dy}, 1},
              {RowMajorShapeOf(dy)})[0];
}

std::vector<XlaOp> CodecCalls::BatchNormGradient(
    std::vector<XlaOp> operands) const {
  operands[0] = After(&operands[2], operands[0]);
  const xla::Shape dx = RowMajorShapeOf(operands[2]),
                   vector = RowMajorShapeOf(operands[3]);
  std::vector<xla::Shape> results = {dx, vector, vector};
  if (!on_cpu_) {
    const auto dims = dx.dimensions();
    results.push_back(Memory(GpuBatchNormScratchBytes(
        {coding_, {dims.begin(), dims.end()}, DType::kF32})));
  }
  // A GPU's dx is in memory of its own: what else reads dy would have a copy.
  return Made(
      {kBatchNormGradient, Attributes(coding_), operands, on_cpu_ ? 2 : -1},
      std::move(results));
}

XlaOp CodecCalls::After(XlaOp* gate, XlaOp stream) const {
  return on_cpu_ ? GatedWith(on_cpu_, {stream}, gate).front() : stream;
}

}  // namespace comptrain::hlo
