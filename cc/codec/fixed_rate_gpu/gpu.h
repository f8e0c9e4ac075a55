// The fixed-rate codec on a GPU: the functions of fixed_rate.h, with device
// memory aligned to 4 bytes, launched on a CUDA stream. They write the CPU's
// bytes for the bounds and centres that they find, whose sums are in another
// order.
#pragma once

#include <cstddef>

#include "cc/codec/common/gpu.h"
#include "cc/codec/common/status.h"
#include "cc/codec/fixed_rate/fixed_rate.h"

namespace comptrain {

// Device memory that an encoder works in, of any tensor.
constexpr size_t kGpuFixedRateScratchBytes = 1360;

Status GpuFixedRateEncode(const FixedRateTensor& of, const FixedRateInput& in,
                          void* scratch, const FixedRateOutput& out,
                          CUstream_st* cuda_stream);

Status GpuFixedRateDecode(const FixedRateStream& stream, void* x_hat,
                          CUstream_st* cuda_stream);

// dx may be one of dy.
Status GpuFixedRateMaskGradient(const FixedRateStream& stream,
                                const GradientTerms& dy, void* dx,
                                CUstream_st* cuda_stream);

}  // namespace comptrain
