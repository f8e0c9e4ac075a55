// CPU kernels of Bitmask, MaxPool and their gradients.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/codec/bitmask.h"
#include "cc/codec/pool.h"
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

// Attributes shared by MaxPool and its gradient.
struct PoolAttrs {
  std::vector<int32_t> ksize, strides;
  bool same = false;

  absl::Status Read(OpKernelConstruction* ctx) {
    std::string padding;
    absl::Status s = ctx->GetAttr("ksize", &ksize);
    if (s.ok()) s = ctx->GetAttr("strides", &strides);
    if (s.ok()) s = ctx->GetAttr("padding", &padding);
    if (!s.ok()) return s;
    same = padding == "SAME";
    if (ksize.size() > 3 || ksize.size() != strides.size()) {
      return absl::InvalidArgumentError(
          "ksize and strides need one entry for each of 1 to 3 spatial "
          "dimensions");
    }
    int64_t window = 1;
    for (size_t i = 0; i < ksize.size(); ++i) {
      if (ksize[i] < 1 || strides[i] < 1) {
        return absl::InvalidArgumentError("ksize and strides must be positive");
      }
      window *= ksize[i];
      if (window > (1 << 16)) {
        return absl::InvalidArgumentError(
            "the pooling window has more than 65536 positions");
      }
    }
    return absl::OkStatus();
  }

  absl::Status Shape(const TensorShape& in, PoolShape* p) const {
    const int rank = ksize.size();
    if (in.dims() != rank + 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("x must be [batch, ", rank,
                       " spatial dimensions, channels], got ",
                       in.DebugString()));
    }
    p->batch = in.dim_size(0);
    p->channels = in.dim_size(rank + 1);
    for (int i = 0; i < rank; ++i) {
      const int d = 3 - rank + i;
      const int64_t size = in.dim_size(i + 1);
      p->in_size[d] = size;
      p->window[d] = ksize[i];
      p->stride[d] = strides[i];
      const int64_t covered = same ? size : size - ksize[i] + 1;
      if (covered < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("the pooling window (", ksize[i],
                         ") is larger than the input (", size, ")"));
      }
      p->out_size[d] = (covered + strides[i] - 1) / strides[i];
      if (same) {
        const int64_t needed = (p->out_size[d] - 1) * strides[i] + ksize[i];
        p->pad_before[d] = std::max<int64_t>(0, needed - size) / 2;
      }
    }
    return absl::OkStatus();
  }

  TensorShape Output(const PoolShape& p) const {
    TensorShape y({p.batch});
    for (int d = 3 - static_cast<int>(ksize.size()); d < 3; ++d) {
      y.AddDim(p.out_size[d]);
    }
    y.AddDim(p.channels);
    return y;
  }
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
