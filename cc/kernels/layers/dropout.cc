// CPU kernel of Dropout.
#include "cc/codec/dropout/dropout.h"

#include "absl/strings/str_cat.h"
#include "cc/codec/masks/bitmask.h"
#include "cc/kernels/common/register.h"
#include "cc/kernels/common/util.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {
namespace {

// Elsewhere TensorFlow draws the numbers.
class DropoutOp : public OpKernel {
 public:
  explicit DropoutOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rate", &rate_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("scale", &scale_));
    OP_REQUIRES(ctx, rate_ >= 0 && rate_ <= 1,
                absl::InvalidArgumentError(
                    absl::StrCat("rate must be between 0 and 1, got ", rate_)));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& key = ctx->input(1);
    const Tensor& counter = ctx->input(2);
    const char* const of_seed =
        "what StatelessRandomGetKeyCounter makes of a seed";
    OP_REQUIRES_OK(ctx,
                   CheckShape("key", key.shape(), TensorShape({1}), of_seed));
    OP_REQUIRES_OK(
        ctx, CheckShape("counter", counter.shape(), TensorShape({2}), of_seed));
    Tensor* y = nullptr;
    Tensor* bits = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(
                       1, TensorShape({BitmaskBytes(x.NumElements())}), &bits));
    const auto words = counter.flat<uint64_t>();
    const Philox philox = {key.flat<uint64_t>()(0), {words(0), words(1)}};
    Dropout(TensorInOf(x), {rate_, scale_, philox}, MutableData(y),
            bits->flat<uint8_t>().data(), WorkerThreads(ctx));
  }

 private:
  float rate_, scale_;
};

COMPTRAIN_REGISTER("Dropout", tensorflow::DEVICE_CPU, DropoutOp)

}  // namespace
}  // namespace comptrain
