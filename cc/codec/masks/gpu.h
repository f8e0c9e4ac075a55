// Masks and pooling on a GPU: what bitmask.h and pool.h do on a CPU.
//
// Every call is asynchronous on cuda_stream, allocates nothing, and returns an
// error of the CUDA runtime as Status::Invalid. All pointers are to device
// memory, aligned to 16 bytes.
#pragma once

#include <cstdint>

#include "cc/codec/common/tensor.h"
#include "cc/codec/masks/bitmask.h"
#include "cc/codec/common/dtype.h"
#include "cc/codec/common/gpu.h"
#include "cc/codec/common/status.h"
#include "cc/codec/masks/pool.h"

namespace comptrain {

Status GpuBitmaskPack(const TensorIn& x, const Interval& where, uint8_t* bits,
                      CUstream_st* cuda_stream);
Status GpuBitmaskGradient(const uint8_t* bits, const MaskFactors& factors,
                          const TensorIn& dy, void* dx,
                          CUstream_st* cuda_stream);

Status GpuMaxPoolIndex(const void* x, DType dtype, const PoolShape& shape,
                       void* y, uint8_t* index, CUstream_st* cuda_stream);
Status GpuMaxPoolGradient(const uint8_t* index, DType dtype,
                          const PoolShape& shape, const void* dy, void* dx,
                          CUstream_st* cuda_stream);

}  // namespace comptrain
