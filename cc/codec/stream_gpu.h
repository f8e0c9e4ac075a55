// What the codecs on a GPU have in common: a tensor is encoded in two passes,
// of which the first measures.
#ifndef TF_COMPTRAIN_CC_CODEC_STREAM_GPU_H_
#define TF_COMPTRAIN_CC_CODEC_STREAM_GPU_H_

#include <cstdint>

struct CUstream_st;  // cudaStream_t, without CUDA's headers

namespace comptrain {

// What the first pass finds. In memory that the device sees.
struct GpuTotals {
  uint64_t words;  // of the payload
  uint64_t nonzero;
  double sum, sum_sq;  // of the finite values
};

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_STREAM_GPU_H_
