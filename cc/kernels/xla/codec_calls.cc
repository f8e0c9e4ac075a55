#include "cc/kernels/xla/codec_calls.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "cc/codec/fixed_rate_gpu/gpu.h"
#include "cc/codec/layers/batch_norm_gpu.h"
#include "cc/kernels/common/util.h"
#include "cc/kernels/xla/calls.h"
#include "cc/kernels/xla/fence.h"
#include "tensorflow/compiler/tf2xla/type_util.h"

namespace comptrain::hlo {
namespace {

std::string Attributes(const FixedRateCoding& coding) {
  return absl::StrFormat(
      "bits = %d : i32, mid_rise = %d : i32, row_scales = %d : i32",
      coding.bits, coding.mid_rise, coding.row_scales);
}

std::string Attributes(const FixedRateCoding& coding, const Encoding& how) {
  return absl::StrFormat(
      "%s, relative_bound = %.9e : f32, decay = %.9e : f32, of_range = %d : "
      "i32, group_statistics = %d : i32",
      Attributes(coding), how.bound.relative_bound, how.bound.decay,
      how.bound.of_range, how.group_statistics);
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

XlaOp CodecCalls::MaskGradient(XlaOp stream, std::vector<XlaOp> dy) const {
  std::vector<XlaOp> operands = {After(&dy[0], stream)};
  operands.insert(operands.end(), dy.begin(), dy.end());
  return Made({kMaskGradient, Attributes(coding_), operands, 1},
              {RowMajorShapeOf(dy[0])})[0];
}

std::vector<XlaOp> CodecCalls::BatchNormGradient(
    std::vector<XlaOp> operands) const {
  operands[0] = After(&operands[2], operands[0]);
  const xla::Shape dx = RowMajorShapeOf(operands[2]),
                   vector = RowMajorShapeOf(operands[3]);
  std::vector<xla::Shape> results = {dx, vector, vector};
  if (!on_cpu_) {
    const auto dims = dx.dimensions();
    const auto type =
        tensorflow::EncodePrimitiveTypeAsDataType(dx.element_type());
    results.push_back(Memory(GpuBatchNormScratchBytes(
        {coding_, {dims.begin(), dims.end()}, ToDType(*type)})));
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
