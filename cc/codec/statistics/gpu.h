// The summary of a tensor and gradient_stats.h on a GPU.
//
// Every call is asynchronous on cuda_stream, allocates nothing, and returns an
// error of the CUDA runtime as Status::Invalid. All pointers are to device
// memory, aligned to their elements; scratch to 16 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/codec/common/dtype.h"
#include "cc/codec/common/gpu.h"
#include "cc/codec/common/status.h"
#include "cc/codec/common/tensor.h"

namespace comptrain {

struct Summary;  // items.h

// What is in a tensor. The summary is the first thing in scratch.
size_t GpuSummaryScratchBytes();
Status GpuSummarize(const void* x, DType dtype, int64_t n, void* scratch,
                    CUstream_st* cuda_stream);
// stats: 3 floats, as GradientStats has them. scratch as above.
Status GpuGradientStats(const TensorIn& dy, int64_t channels, void* scratch,
                        float* stats, CUstream_st* cuda_stream);

}  // namespace comptrain
