// Bitmask, MaxPool and their gradients for a Device, which has the functions
//   static Status Pack(ctx, x, lower, upper, bits);
//   static Status Unpack(ctx, bits, on, off, dy, dx);
//   static Status Pool(ctx, x, shape, y, index);
//   static Status Scatter(ctx, index, shape, dy, dx);
#ifndef TF_COMPTRAIN_CC_KERNELS_MASKS_OPS_H_
#define TF_COMPTRAIN_CC_KERNELS_MASKS_OPS_H_

#include "absl/strings/str_cat.h"
#include "cc/codec/masks/bitmask.h"
#include "cc/codec/masks/pool.h"
#include "cc/kernels/masks/pool_attrs.h"
#include "cc/kernels/common/util.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace comptrain {

template <class Device>
class BitmaskOp : public tensorflow::OpKernel {
 public:
  explicit BitmaskOp(tensorflow::OpKernelConstruction* ctx)
      : tensorflow::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("lower", &lower_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("upper", &upper_));
  }

  void Compute(tensorflow::OpKernelContext* ctx) override {
    const tensorflow::Tensor& x = ctx->input(0);
    tensorflow::Tensor* bits = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(
                 1, tensorflow::TensorShape({BitmaskBytes(x.NumElements())}),
                 &bits));
    OP_REQUIRES_OK(ctx, ToAbsl(Device::Pack(ctx, x, lower_, upper_,
                                            bits->flat<uint8_t>().data())));
    ctx->set_output(0, x);
  }

 private:
  float lower_, upper_;
};

template <class Device>
class BitmaskGradOp : public tensorflow::OpKernel {
 public:
  explicit BitmaskGradOp(tensorflow::OpKernelConstruction* ctx)
      : tensorflow::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("on", &on_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("off", &off_));
  }

  void Compute(tensorflow::OpKernelContext* ctx) override {
    const tensorflow::Tensor& bits = ctx->input(0);
    const tensorflow::Tensor& dy = ctx->input(1);
    OP_REQUIRES(ctx, bits.NumElements() == BitmaskBytes(dy.NumElements()),
                absl::InvalidArgumentError(absl::StrCat(
                    "bits must have one bit for each of the ", dy.NumElements(),
                    " elements of dy (", BitmaskBytes(dy.NumElements()),
                    " bytes), got ", bits.NumElements(), " bytes")));
    tensorflow::Tensor* dx = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({1}, 0, dy.shape(), &dx));
    OP_REQUIRES_OK(ctx, ToAbsl(Device::Unpack(ctx, bits.flat<uint8_t>().data(),
                                              on_, off_, dy, MutableData(dx))));
  }

 private:
  float on_, off_;
};

template <class Device>
class MaxPoolOp : public tensorflow::OpKernel {
 public:
  explicit MaxPoolOp(tensorflow::OpKernelConstruction* ctx)
      : tensorflow::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, attrs_.Read(ctx));
  }

  void Compute(tensorflow::OpKernelContext* ctx) override {
    const tensorflow::Tensor& x = ctx->input(0);
    PoolShape p;
    OP_REQUIRES_OK(ctx, attrs_.Shape(x.shape(), &p));
    tensorflow::Tensor* y = nullptr;
    tensorflow::Tensor* index = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, attrs_.Output(p), &y));
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(
                 1, tensorflow::TensorShape({PoolIndexBytes(p)}), &index));
    OP_REQUIRES_OK(ctx, ToAbsl(Device::Pool(ctx, x, p, MutableData(y),
                                            index->flat<uint8_t>().data())));
  }

 private:
  PoolAttrs attrs_;
};

template <class Device>
class MaxPoolGradOp : public tensorflow::OpKernel {
 public:
  explicit MaxPoolGradOp(tensorflow::OpKernelConstruction* ctx)
      : tensorflow::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, attrs_.Read(ctx));
  }

  void Compute(tensorflow::OpKernelContext* ctx) override {
    const tensorflow::Tensor& index = ctx->input(0);
    const tensorflow::Tensor& dy = ctx->input(1);
    tensorflow::TensorShape in;
    OP_REQUIRES_OK(ctx, tensorflow::tensor::MakeShape(ctx->input(2), &in));
    PoolShape p;
    OP_REQUIRES_OK(ctx, attrs_.Shape(in, &p));
    OP_REQUIRES_OK(ctx, CheckShape("dy", dy.shape(), attrs_.Output(p),
                                   "that of the pooling output"));
    OP_REQUIRES(ctx, index.NumElements() == PoolIndexBytes(p),
                absl::InvalidArgumentError(
                    absl::StrCat("index must have ", PoolIndexBytes(p),
                                 " bytes, got ", index.NumElements())));
    tensorflow::Tensor* dx = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, in, &dx));
    OP_REQUIRES_OK(
        ctx, ToAbsl(Device::Scatter(ctx, index.flat<uint8_t>().data(), p, dy,
                                    MutableData(dx))));
  }

 private:
  PoolAttrs attrs_;
};

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_KERNELS_MASKS_OPS_H_
