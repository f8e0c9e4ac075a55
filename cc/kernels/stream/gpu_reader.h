// What the GPU kernels that read a stream have in common.
#ifndef TF_COMPTRAIN_CC_KERNELS_STREAM_GPU_READER_H_
#define TF_COMPTRAIN_CC_KERNELS_STREAM_GPU_READER_H_

#include "cc/codec/registry/gpu.h"
#include "cc/kernels/common/gpu.h"
#include "cc/kernels/stream/attrs.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {

// The stream is the first input.
class GpuReaderOp : public tensorflow::OpKernel {
 public:
  explicit GpuReaderOp(tensorflow::OpKernelConstruction* ctx)
      : tensorflow::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadCodec(ctx, &codec_, &is_auto_));
  }

 protected:
  // The stream as one of a tensor of that type and shape.
  absl::Status Open(tensorflow::OpKernelContext* ctx,
                    tensorflow::DataType dtype,
                    const tensorflow::TensorShape& shape,
                    GpuEncoded* from) const {
    const tensorflow::Tensor& stream = ctx->input(0);
    from->stream_dev = Data(stream);
    from->bytes = stream.NumElements();
    from->dtype = ToDType(dtype);
    from->n = shape.num_elements();
    from->channels = from->n == 0 ? 1 : Channels(shape);
    from->any_codec = is_auto_;
    return DamageFlag::Get(&from->damaged_dev);
  }
  CodecId codec() const { return codec_; }

 private:
  CodecId codec_ = CodecId::kPlane;
  bool is_auto_ = false;
};

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_KERNELS_STREAM_GPU_READER_H_
