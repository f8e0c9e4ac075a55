// What the codecs on a GPU have in common: a tensor is encoded in two passes,
// of which the first measures.
#ifndef TF_COMPTRAIN_CC_CODEC_STREAM_GPU_H_
#define TF_COMPTRAIN_CC_CODEC_STREAM_GPU_H_

#include <cstddef>
#include <cstdint>

#include "cc/codec/stream.h"

struct CUstream_st;  // cudaStream_t, without CUDA's headers

namespace comptrain {

// What the first pass finds. In memory that the device sees.
struct GpuTotals {
  uint64_t words;  // of the payload
  uint64_t nonzero;
  double sum, sum_sq;  // of the finite values
};

// A stream in device memory, and what the host knows of it.
struct GpuEncoded {
  const void* stream_dev = nullptr;
  size_t bytes = 0;
  DType dtype = DType::kF32;
  int64_t n = 0, channels = 1;  // channels: the last dimension of the tensor
  // Set to a value other than 0 where the stream is damaged; the caller zeroes it.
  uint32_t* damaged_dev = nullptr;
  // The stream may be another codec's: it is left to that one's reader then.
  bool any_codec = false;
};

namespace gpu {

// Where set, called before and after every launch of a kernel, whose purpose is
// `what`: benchmarks time kernels by it. Not to be set while others launch.
using LaunchObserver = void (*)(const char* what, bool launched,
                                CUstream_st* stream);
inline LaunchObserver launch_observer = nullptr;

}  // namespace gpu
}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_STREAM_GPU_H_
