// Runs CUDA sources on a CPU, for tests: what they use of CUDA, with device
// memory in host memory, and the threads of a block as coroutines that take
// turns in random order. Blocks run one after the other, calls at once.
//
// It finds wrong results, deadlocks, exchanges that not all threads of a warp
// take part in, barriers that are missing (in some order of the threads), and,
// with AddressSanitizer, accesses outside of device and dynamic shared memory.
// It says nothing of speed, registers or memory models.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

namespace emulated_gpu {

constexpr int kWarp = 32;
struct Index {
  unsigned x;
};

// What happens between threads: all of a warp, or of a block, must ask for the
// same. Returns what each of them gave.
enum class Exchange { kBallot, kAll, kAny, kShuffle, kUp, kDown, kXor, kSync };
const uint64_t* WarpExchange(Exchange what, uint64_t value);
// Returns whether all gave true.
bool BlockBarrier(bool value);

uint8_t* SharedMemory();
void RunBlocks(unsigned blocks, int threads, size_t shared_bytes,
               const std::function<void()>& thread);

template <class... Parameters, class Stream, class... Arguments>
void Start(void (*kernel)(Parameters...), unsigned blocks, int threads,
           size_t shared_bytes, Stream*, const Arguments&... arguments) {
  RunBlocks(blocks, threads, shared_bytes, [&] { kernel(arguments...); });
}

}  // namespace emulated_gpu

extern emulated_gpu::Index threadIdx, blockIdx, blockDim, gridDim;

using std::isfinite;

using std::max;
using std::min;

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, int by) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, int by) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (by & 31));
}

inline unsigned __ballot_sync(unsigned, bool value) {
  using namespace emulated_gpu;
  const uint64_t* of = WarpExchange(Exchange::kBallot, value);
  unsigned bits = 0;
  for (int i = 0; i < kWarp; ++i) bits |= static_cast<unsigned>(of[i]) << i;
  return bits;
}
inline bool __any_sync(unsigned, bool value) {
  using namespace emulated_gpu;
  const uint64_t* of = WarpExchange(Exchange::kAny, value);
  for (int i = 0; i < kWarp; ++i) {
    if (of[i]) return true;
  }
  return false;
}
inline bool __all_sync(unsigned, bool value) {
  using namespace emulated_gpu;
  const uint64_t* of = WarpExchange(Exchange::kAll, !value);
  for (int i = 0; i < kWarp; ++i) {
    if (of[i]) return false;
  }
  return true;
}

namespace emulated_gpu {
// value of the lane `from`; this one's where there is none.
template <class T>
T Shuffle(Exchange what, T value, int from) {
  static_assert(sizeof(T) <= sizeof(uint64_t),
                "a shuffle is of at most 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const uint64_t* of = WarpExchange(what, bits);
  if (from >= 0 && from < kWarp) std::memcpy(&value, of + from, sizeof value);
  return value;
}
inline int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
}  // namespace emulated_gpu

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  using namespace emulated_gpu;
  return Shuffle(Exchange::kShuffle, value, lane % kWarp);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int delta) {
  using namespace emulated_gpu;
  return Shuffle(Exchange::kUp, value, Lane() - delta);
}
template <class T>
T __shfl_down_sync(unsigned, T value, int delta) {
  using namespace emulated_gpu;
  return Shuffle(Exchange::kDown, value, Lane() + delta);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  using namespace emulated_gpu;
  return Shuffle(Exchange::kXor, value, Lane() ^ mask);
}

inline void __syncwarp() {
  emulated_gpu::WarpExchange(emulated_gpu::Exchange::kSync, 0);
}
inline void __syncthreads() { emulated_gpu::BlockBarrier(true); }
inline bool __syncthreads_and(bool value) {
  return emulated_gpu::BlockBarrier(value);
}

template <class T, class U>
T atomicAdd(T* at, U value) {
  const T before = *at;
  *at += value;
  return before;
}
template <class T, class U>
T atomicMax(T* at, U value) {
  const T before = *at;
  if (value > before) *at = value;
  return before;
}
inline void __threadfence() {}
template <class T, class U>
T atomicOr(T* at, U value) {
  const T before = *at;
  *at |= value;
  return before;
}

// --- The runtime -------------------------------------------------------------

enum cudaError_t { cudaSuccess };
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
constexpr unsigned cudaHostAllocMapped = 2;
struct cudaDeviceProp {
  char name[32];
  int l2CacheSize;
};
using cudaEvent_t = int;
using cudaStream_t = struct CUstream_st*;

template <class T>
cudaError_t cudaMalloc(T** data, size_t bytes) {
  *data = static_cast<T*>(std::malloc(bytes));
  return cudaSuccess;
}
template <class T>
cudaError_t cudaHostAlloc(T** data, size_t bytes, unsigned) {
  return cudaMalloc(data, bytes);
}
inline cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
inline cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                                   cudaStream_t = nullptr) {
  return cudaMemset(to, value, bytes);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                              cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                   cudaMemcpyKind kind,
                                   cudaStream_t = nullptr) {
  return cudaMemcpy(to, from, bytes, kind);
}
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
  return cudaSuccess;
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorName(cudaError_t) { return "cudaSuccess"; }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"emulated on the CPU", 0};
  return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t*) { return cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr) {
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 1;
  return cudaSuccess;
}
