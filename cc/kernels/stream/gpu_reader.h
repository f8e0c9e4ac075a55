// What the GPU kernels that read a stream have in common.
#pragma once

#include "cc/codec/registry/gpu.h"
#include "cc/kernels/common/gpu.h"
#include "cc/kernels/stream/attrs.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {

// The stream is the first input.
class GpuReaderOp : public OpKernel {
 public:
  explicit GpuReaderOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadCodec(ctx, &codec_, &is_auto_));
  }

 protected:
  // The stream as one of a tensor of that type and shape.
  absl::Status Open(OpKernelContext* ctx, tensorflow::DataType dtype,
                    const TensorShape& shape, GpuEncoded* from) const {
    const Tensor& stream = ctx->input(0);
    from->stream_dev = Data(stream);
    from->bytes = stream.NumElements();
    from->dtype = ToDType(dtype);
    from->n = shape.num_elements();
    from->channels = from->n == 0 ? 1 : Channels(shape);
    from->width = Width(shape);
    from->any_codec = is_auto_;
    return DamageFlag::Get(&from->damaged_dev);
  }
  CodecId codec() const { return codec_; }

 private:
  CodecId codec_ = CodecId::kPlane;
  bool is_auto_ = false;
};

}  // namespace comptrain
