// What the GPU kernels share: TensorFlow's CUDA stream, bytes brought back to
// the host, and word of damaged streams. Compiled by the C++ compiler, not by
// nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "cc/kernels/common/util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "xla/stream_executor/stream.h"

namespace comptrain {

// The CUDA stream that TensorFlow computes on, on the op's device.
inline CUstream_st* CudaStream(OpKernelContext* ctx) {
  return static_cast<CUstream_st*>(
      ctx->op_device_context()->stream()->platform_specific_handle().stream);
}

inline absl::Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("GPU kernels: ", what, " failed, ",
                                          cudaGetErrorName(error), " (",
                                          cudaGetErrorString(error), ")"));
}

// Device memory until the op returns; TensorFlow reuses it in stream order.
inline absl::Status AllocateScratch(OpKernelContext* ctx, size_t bytes,
                                    Tensor* scratch) {
  return ctx->allocate_temp(tensorflow::DT_UINT8,
                            TensorShape({static_cast<int64_t>(bytes)}),
                            scratch);
}

// Host memory that the device reads and writes, at the same address: pinned.
inline absl::Status AllocatePinned(OpKernelContext* ctx, size_t bytes,
                                   Tensor* host) {
  tensorflow::AllocatorAttributes pinned;
  pinned.set_on_host(true);
  pinned.set_gpu_compatible(true);
  return ctx->allocate_temp(tensorflow::DT_UINT8,
                            TensorShape({static_cast<int64_t>(bytes)}), host,
                            pinned);
}

// Waits for all that was launched before. An op that waits also keeps the host
// from running ahead of the GPU.
inline absl::Status Wait(OpKernelContext* ctx) {
  return CudaStatus(cudaStreamSynchronize(CudaStream(ctx)), "waiting");
}

// Copies from the device to *host, which it allocates, and waits.
inline absl::Status ReadBack(OpKernelContext* ctx, const void* from_dev,
                             size_t bytes, Tensor* host) {
  absl::Status s = AllocatePinned(ctx, bytes, host);
  if (!s.ok()) return s;
  s = CudaStatus(cudaMemcpyAsync(MutableData(host), from_dev, bytes,
                                 cudaMemcpyDeviceToHost, CudaStream(ctx)),
                 "a copy to the host");
  return s.ok() ? Wait(ctx) : s;
}

// A word of host memory in which decoders on any GPU note a damaged stream. Ops
// look at it when they begin, without waiting: damage shows one op late.
class DamageFlag {
 public:
  // The word, for a decoder; an error when damage was noted since the last
  // call.
  static absl::Status Get(uint32_t** word) {
    static const Made made;
    if (made.error != cudaSuccess) {
      return CudaStatus(made.error, "allocating pinned memory");
    }
    *word = made.word;
    if (__atomic_exchange_n(made.word, 0, __ATOMIC_RELAXED) == 0) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "a stream decoded on the GPU before this op is damaged: its parts do "
        "not add up; pass the bytes exactly as they were encoded");
  }

 private:
  struct Made {
    Made() {
      void* memory = nullptr;
      error = cudaHostAlloc(&memory, sizeof *word,
                            cudaHostAllocPortable | cudaHostAllocMapped);
      word = static_cast<uint32_t*>(memory);
      if (error == cudaSuccess) *word = 0;
    }
    uint32_t* word = nullptr;
    cudaError_t error;
  };
};

}  // namespace comptrain
