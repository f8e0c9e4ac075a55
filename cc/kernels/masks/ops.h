// Bitmask, MaxPool and their gradients for a Device, which has the functions
//   static Status Pack(ctx, x, lower, upper, bits);
//   static Status Unpack(ctx, bits, on, off, dy, dx);
//   static Status Pool(ctx, x, shape, y, index);
//   static Status Scatter(ctx, index, shape, dy, dx);
#pragma once

#include "absl/strings/str_cat.h"
#include "cc/codec/masks/bitmask.h"
#include "cc/codec/masks/pool.h"
#include "cc/kernels/masks/pool_attrs.h"
#include "cc/kernels/common/util.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace comptrain {

struct BitmaskLimits {
  float lower, upper;
  absl::Status Read(OpKernelConstruction* ctx) {
    const absl::Status s = ctx->GetAttr("lower", &lower);
    return s.ok() ? ctx->GetAttr("upper", &upper) : s;
  }
};

template <class Device>
class BitmaskOp : public OpWithAttrs<BitmaskLimits> {
 public:
  using OpWithAttrs<BitmaskLimits>::OpWithAttrs;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    Tensor* bits = nullptr;
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(
                       1, TensorShape({BitmaskBytes(x.NumElements())}), &bits));
    OP_REQUIRES_OK(ctx, ToAbsl(Device::Pack(ctx, x, attrs_.lower, attrs_.upper,
                                            bits->flat<uint8_t>().data())));
    ctx->set_output(0, x);
  }
};

struct BitmaskFactors {
  float on, off;
  absl::Status Read(OpKernelConstruction* ctx) {
    const absl::Status s = ctx->GetAttr("on", &on);
    return s.ok() ? ctx->GetAttr("off", &off) : s;
  }
};

template <class Device>
class BitmaskGradOp : public OpWithAttrs<BitmaskFactors> {
 public:
  using OpWithAttrs<BitmaskFactors>::OpWithAttrs;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& bits = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    OP_REQUIRES(ctx, bits.NumElements() == BitmaskBytes(dy.NumElements()),
                absl::InvalidArgumentError(absl::StrCat(
                    "bits must have one bit for each of the ", dy.NumElements(),
                    " elements of dy (", BitmaskBytes(dy.NumElements()),
                    " bytes), got ", bits.NumElements(), " bytes")));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({1}, 0, dy.shape(), &dx));
    OP_REQUIRES_OK(
        ctx, ToAbsl(Device::Unpack(ctx, bits.flat<uint8_t>().data(), attrs_.on,
                                   attrs_.off, dy, MutableData(dx))));
  }
};

template <class Device>
class MaxPoolOp : public OpWithAttrs<PoolAttrs> {
 public:
  using OpWithAttrs<PoolAttrs>::OpWithAttrs;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    PoolShape p;
    OP_REQUIRES_OK(ctx, attrs_.Shape(x.shape(), &p));
    Tensor* y = nullptr;
    Tensor* index = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, attrs_.Output(p), &y));
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(1, TensorShape({PoolIndexBytes(p)}), &index));
    OP_REQUIRES_OK(ctx, ToAbsl(Device::Pool(ctx, x, p, MutableData(y),
                                            index->flat<uint8_t>().data())));
  }
};

template <class Device>
class MaxPoolGradOp : public OpWithAttrs<PoolAttrs> {
 public:
  using OpWithAttrs<PoolAttrs>::OpWithAttrs;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& index = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    TensorShape in;
    OP_REQUIRES_OK(ctx, tensorflow::tensor::MakeShape(ctx->input(2), &in));
    PoolShape p;
    OP_REQUIRES_OK(ctx, attrs_.Shape(in, &p));
    OP_REQUIRES_OK(ctx, CheckShape("dy", dy.shape(), attrs_.Output(p),
                                   "that of the pooling output"));
    OP_REQUIRES(ctx, index.NumElements() == PoolIndexBytes(p),
                absl::InvalidArgumentError(
                    absl::StrCat("index must have ", PoolIndexBytes(p),
                                 " bytes, got ", index.NumElements())));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, in, &dx));
    OP_REQUIRES_OK(
        ctx, ToAbsl(Device::Scatter(ctx, index.flat<uint8_t>().data(), p, dy,
                                    MutableData(dx))));
  }
};

}  // namespace comptrain
