// What the XLA lowerings of the ops have in common, for its CPU and GPU
// compilers.
//
// They are registered as kernels of XLA's compilation devices. REGISTER_XLA_OP
// would not do: its kernels are registered once, when the first op or model of
// the process is made, and this library is loaded later.
#pragma once

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc/kernels/common/register.h"
#include "cc/kernels/common/util.h"
#include "cc/kernels/xla/hlo.h"
#include "cc/kernels/xla/packing.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

namespace comptrain::hlo {

using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;

constexpr char kCpuCompiler[] = "XLA_CPU_JIT", kGpuCompiler[] = "XLA_GPU_JIT";

// A lowering, and which of XLA's compilers it is for.
// TF_COMPTRAIN_XLA_TARGET=GPU: for the GPU's on any machine
// (benchmarks/gpu/compile_only.py).
class Lowering : public tensorflow::XlaOpKernel {
 public:
  explicit Lowering(OpKernelConstruction* ctx)
      : tensorflow::XlaOpKernel(ctx),
        on_cpu_(ctx->device_type() == kCpuCompiler) {
    const char* target = std::getenv("TF_COMPTRAIN_XLA_TARGET");
    if (target != nullptr && std::string(target) == "GPU") on_cpu_ = false;
  }

 protected:
  bool on_cpu_;
};

inline TensorShape ShapeOf(XlaOpKernelContext* ctx, int input) {
  return TensorShape(Dims(ctx->Input(input)));
}

// The first input, what Pack makes of a tensor. The builder of a computation
// would end the process when asked for the shape of what it has refused.
inline absl::Status CheckPacked(const char* name, XlaOpKernelContext* ctx,
                                const Packing& packing) {
  return CheckShape(
      name, ShapeOf(ctx, 0), TensorShape(packing.bytes.group_dims()),
      absl::StrCat(
          "that of ", packing.bits, " bits a value for a tensor of shape ",
          TensorShape(packing.bytes.dims).DebugString(), " under XLA"));
}

}  // namespace comptrain::hlo

// After COMPTRAIN_REGISTER: for both compilers.
#define COMPTRAIN_REGISTER_XLA(OP, KERNEL)     \
  COMPTRAIN_REGISTER(OP, kCpuCompiler, KERNEL) \
  COMPTRAIN_REGISTER(OP, kGpuCompiler, KERNEL)

// Likewise of what calls the codec: for a GPU's compiler where the library has
// its kernels.
#ifdef COMPTRAIN_CUDA
#define COMPTRAIN_REGISTER_XLA_CODEC COMPTRAIN_REGISTER_XLA
#else
#define COMPTRAIN_REGISTER_XLA_CODEC(OP, KERNEL) \
  COMPTRAIN_REGISTER(OP, kCpuCompiler, KERNEL)
#endif
