// What every kernel here needs: codec status to op status, TensorFlow dtype to
// codec dtype, the device's worker threads as a ParallelFor, shapes checked.
#pragma once

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cc/codec/common/dtype.h"
#include "cc/codec/common/parallel.h"
#include "cc/codec/common/status.h"
#include "cc/codec/common/tensor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/public/version.h"

namespace comptrain {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// A kernel whose attributes Attrs::Read(ctx) reads.
template <class Attrs>
class OpWithAttrs : public OpKernel {
 public:
  explicit OpWithAttrs(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, attrs_.Read(ctx));
  }

 protected:
  Attrs attrs_;
};

inline absl::Status ToAbsl(const Status& s) {
  return s.ok() ? absl::OkStatus() : absl::InvalidArgumentError(s.message);
}

inline DType ToDType(tensorflow::DataType t) {
  switch (t) {
    case tensorflow::DT_BFLOAT16:
      return DType::kBF16;
    case tensorflow::DT_HALF:
      return DType::kF16;
    default:
      return DType::kF32;
  }
}

inline ParallelFor WorkerThreads(OpKernelContext* ctx) {
  auto* pool = ctx->device()->tensorflow_cpu_worker_threads()->workers;
  return [pool](int64_t n, int64_t cost_per_item, const RangeBody& body) {
    if (n <= 0) return;
#if TF_MAJOR_VERSION == 2 && TF_MINOR_VERSION < 20
    pool->ParallelFor(n, cost_per_item, body);
#else
    using Scheduling = tensorflow::thread::ThreadPool::SchedulingParams;
    pool->ParallelFor(n, Scheduling::Adaptive(cost_per_item), body);
#endif
  };
}

// Channels are the last dimension; a scalar has one.
inline int64_t Channels(const TensorShape& shape) {
  return shape.dims() == 0 ? 1 : shape.dim_size(shape.dims() - 1);
}

// Pixels from one to the one above it, where there are images; else 0.
inline int64_t Width(const TensorShape& shape) {
  const int rank = shape.dims();
  return rank >= 4 ? shape.dim_size(rank - 2) : 0;
}

// Whether an argument has the shape that it must have, which `why` explains.
inline absl::Status CheckShape(absl::string_view name, const TensorShape& shape,
                               const TensorShape& wanted,
                               absl::string_view why) {
  if (shape == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must have shape ", wanted.DebugString(), ", ", why,
                   ", got ", shape.DebugString()));
}

inline const void* Data(const Tensor& t) { return t.tensor_data().data(); }
inline void* MutableData(Tensor* t) {
  return const_cast<char*>(t->tensor_data().data());
}
inline TensorIn TensorInOf(const Tensor& t) {
  return {Data(t), ToDType(t.dtype()), t.NumElements()};
}
// The stream, in bytes, of a tensor like that.
inline StreamIn StreamInOf(const Tensor& stream, const Tensor& like) {
  return {stream.flat<uint8_t>().data(),
          static_cast<size_t>(stream.NumElements()), ToDType(like.dtype()),
          like.NumElements()};
}

}  // namespace comptrain
