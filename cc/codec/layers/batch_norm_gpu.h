// The gradient of batch normalization on a GPU: BatchNormGradientOf and
// BatchNormGradientOfFixedRate of batch_norm.h.
//
// Every call is asynchronous on cuda_stream, allocates nothing, and returns an
// error of the CUDA runtime as Status::Invalid. All pointers are to device
// memory, aligned to 4 bytes; scratch to 16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/codec/common/tensor.h"
#include "cc/codec/layers/batch_norm.h"
#include "cc/codec/common/dtype.h"
#include "cc/codec/common/gpu.h"
#include "cc/codec/common/status.h"

namespace comptrain {

// At the beginning of all scratch.
size_t CoefficientBytes(int64_t channels);

// From x_hat, decoded to dtype. n: a multiple of channels; dx may be dy.
size_t GpuBatchNormScratchBytes(int64_t n, int64_t channels);
Status GpuBatchNormGradient(const TensorIn& x_hat, const void* dy,
                            const BatchNormChannels& of, void* scratch,
                            const NormGradients& out, CUstream_st* cuda_stream);

// From a stream of a fixed rate. dx may be dy.
size_t GpuBatchNormScratchBytes(const FixedRateTensor& of);
Status GpuBatchNormGradientOfFixedRate(const FixedRateStream& stream,
                                       const void* dy,
                                       const BatchNormChannels& of,
                                       void* scratch, const NormGradients& out,
                                       CUstream_st* cuda_stream);

}  // namespace comptrain
