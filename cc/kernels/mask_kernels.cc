// CPU kernels of Bitmask, MaxPool and their gradients.
#include "absl/strings/str_cat.h"
#include "cc/codec/bitmask.h"
#include "cc/codec/pool.h"
#include "cc/kernels/pool_attrs.h"
#include "cc/kernels/util.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace comptrain {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class BitmaskOp : public OpKernel {
 public:
  explicit BitmaskOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("lower", &lower_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("upper", &upper_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    Tensor* bits = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(
                 1, TensorShape({BitmaskBytes(x.NumElements())}), &bits));
    BitmaskPack(Data(x), ToDType(x.dtype()), x.NumElements(), lower_, upper_,
                bits->flat<uint8_t>().data(), WorkerThreads(ctx));
    ctx->set_output(0, x);
  }

 private:
  float lower_, upper_;
};

class BitmaskGradOp : public OpKernel {
 public:
  explicit BitmaskGradOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("on", &on_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("off", &off_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& bits = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    OP_REQUIRES(
        ctx, bits.NumElements() == BitmaskBytes(dy.NumElements()),
        absl::InvalidArgumentError(absl::StrCat(
            "bits must have one bit for each of the ", dy.NumElements(),
            " elements of dy (", BitmaskBytes(dy.NumElements()),
            " bytes), got ", bits.NumElements(), " bytes")));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({1}, 0, dy.shape(),
                                                              &dx));
    BitmaskGradient(bits.flat<uint8_t>().data(), ToDType(dy.dtype()),
                    dy.NumElements(), on_, off_, Data(dy), MutableData(dx),
                    WorkerThreads(ctx));
  }

 private:
  float on_, off_;
};

class MaxPoolOp : public OpKernel {
 public:
  explicit MaxPoolOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, attrs_.Read(ctx));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    PoolShape p;
    OP_REQUIRES_OK(ctx, attrs_.Shape(x.shape(), &p));
    Tensor* y = nullptr;
    Tensor* index = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, attrs_.Output(p), &y));
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(1, TensorShape({PoolIndexBytes(p)}), &index));
    MaxPoolIndex(Data(x), ToDType(x.dtype()), p, MutableData(y),
                 index->flat<uint8_t>().data(), WorkerThreads(ctx));
  }

 private:
  PoolAttrs attrs_;
};

class MaxPoolGradOp : public OpKernel {
 public:
  explicit MaxPoolGradOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, attrs_.Read(ctx));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& index = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    TensorShape in;
    OP_REQUIRES_OK(ctx, tensorflow::tensor::MakeShape(ctx->input(2), &in));
    PoolShape p;
    OP_REQUIRES_OK(ctx, attrs_.Shape(in, &p));
    OP_REQUIRES(ctx, dy.shape() == attrs_.Output(p),
                absl::InvalidArgumentError(absl::StrCat(
                    "dy must have the shape of the pooling output, ",
                    attrs_.Output(p).DebugString(), ", got ",
                    dy.shape().DebugString())));
    OP_REQUIRES(ctx, index.NumElements() == PoolIndexBytes(p),
                absl::InvalidArgumentError(absl::StrCat(
                    "index must have ", PoolIndexBytes(p), " bytes, got ",
                    index.NumElements())));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, in, &dx));
    MaxPoolGradient(index.flat<uint8_t>().data(), ToDType(dy.dtype()), p,
                    Data(dy), MutableData(dx), WorkerThreads(ctx));
  }

 private:
  PoolAttrs attrs_;
};

#define REGISTER(T)                                                         \
  REGISTER_KERNEL_BUILDER(Name("Comptrain>Bitmask")                         \
                              .Device(tensorflow::DEVICE_CPU)               \
                              .TypeConstraint<T>("T"),                      \
                          BitmaskOp);                                       \
  REGISTER_KERNEL_BUILDER(Name("Comptrain>BitmaskGrad")                     \
                              .Device(tensorflow::DEVICE_CPU)               \
                              .TypeConstraint<T>("T"),                      \
                          BitmaskGradOp);                                   \
  REGISTER_KERNEL_BUILDER(Name("Comptrain>MaxPool")                         \
                              .Device(tensorflow::DEVICE_CPU)               \
                              .TypeConstraint<T>("T"),                      \
                          MaxPoolOp);                                       \
  REGISTER_KERNEL_BUILDER(Name("Comptrain>MaxPoolGrad")                     \
                              .Device(tensorflow::DEVICE_CPU)               \
                              .TypeConstraint<T>("T"),                      \
                          MaxPoolGradOp);
REGISTER(float)
REGISTER(Eigen::bfloat16)
REGISTER(Eigen::half)
#undef REGISTER

}  // namespace
}  // namespace comptrain
