// Launches kernels, for CUDA sources.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "cc/codec/common/gpu.h"
#include "cc/codec/common/status.h"
#include "cc/codec/common/warp.h"

namespace comptrain::gpu {

static __device__ inline int WarpSum(int v) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kAllLanes, v);
#else
  for (int d = kWarpLanes / 2; d > 0; d /= 2)
    v += __shfl_xor_sync(kAllLanes, v, d);
  return v;
#endif
}

#ifdef __NVCC__
// The memory that a block is launched with.
static __device__ inline uint8_t* SharedMemory() {
  extern __shared__ __align__(16) uint8_t memory[];
  return memory;
}
template <class... Parameters, class... Arguments>
static void Start(void (*kernel)(Parameters...), unsigned blocks, int threads,
                  size_t shared_bytes, CUstream_st* cuda_stream,
                  const Arguments&... arguments) {
  kernel<<<blocks, threads, shared_bytes, cuda_stream>>>(arguments...);
}
#else  // <cuda_runtime.h> is that of cc/codec/testing/emulated_gpu
using emulated_gpu::SharedMemory;
using emulated_gpu::Start;
#endif

// who: "plane on a GPU", for messages.
static inline Status CheckCuda(const char* who, cudaError_t error,
                               const char* what) {
  if (error == cudaSuccess) return {};
  return Status::Invalid(std::string(who) + ": " + what + " failed, " +
                         cudaGetErrorName(error) + " (" +
                         cudaGetErrorString(error) +
                         "); the GPU must be free and its driver as new as "
                         "this library's CUDA");
}

template <class... Parameters, class... Arguments>
static Status Launch(const char* who, const char* what,
                     void (*kernel)(Parameters...), int64_t blocks, int threads,
                     size_t shared_bytes, CUstream_st* cuda_stream,
                     const Arguments&... arguments) {
  // More than that has to be asked for.
  if (shared_bytes > 48 << 10) {
    const Status s =
        CheckCuda(who,
                  cudaFuncSetAttribute(
                      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                      static_cast<int>(shared_bytes)),
                  what);
    if (!s.ok()) return s;
  }
  if (launch_observer) launch_observer(what, false, cuda_stream);
  Start(kernel, static_cast<unsigned>(blocks), threads, shared_bytes,
        cuda_stream, arguments...);
  if (launch_observer) launch_observer(what, true, cuda_stream);
  return CheckCuda(who, cudaGetLastError(), what);
}

}  // namespace comptrain::gpu
