// Host code alone; a .cu file so that it is built where the kernels are.
#include "cc/codec/codec_gpu.h"

#include <string>

#include "cc/codec/plane_gpu.h"
#include "cc/codec/zvc_gpu.h"

namespace comptrain {
namespace {

ZvcParams Lossless(const EncodeParams& p) { return {p.dtype, p.n, p.channels}; }

Status NoKernel(CodecId id) {
  return Status::Invalid("codec " + std::to_string(static_cast<int>(id)) +
                         " has no GPU kernels; use plane or zvc");
}

}  // namespace

bool CodecOnGpu(CodecId id) {
  return id == CodecId::kPlane || id == CodecId::kZvc;
}

size_t GpuScratchBytes(CodecId id, const EncodeParams& params) {
  switch (id) {
    case CodecId::kPlane:
      return PlaneGpuScratchBytes(params);
    case CodecId::kZvc:
      return ZvcGpuScratchBytes(Lossless(params));
    default:
      return 0;
  }
}

size_t GpuStreamBytes(CodecId id, const EncodeParams& params,
                      const GpuTotals& totals) {
  switch (id) {
    case CodecId::kPlane:
      return PlaneGpuBytes(params, totals);
    case CodecId::kZvc:
      return ZvcGpuBytes(Lossless(params), totals);
    default:
      return 0;
  }
}

Status GpuMeasure(CodecId id, const EncodeParams& params, const void* x_dev,
                  void* scratch_dev, GpuTotals* totals, CUstream_st* stream) {
  switch (id) {
    case CodecId::kPlane:
      return PlaneGpuMeasure(params, x_dev, scratch_dev, totals, stream);
    case CodecId::kZvc:
      return ZvcGpuMeasure(Lossless(params), x_dev, scratch_dev, totals, stream);
    default:
      return NoKernel(id);
  }
}

Status GpuWrite(CodecId id, const EncodeParams& params, const void* x_dev,
                const void* scratch_dev, const GpuTotals& totals, void* out_dev,
                CUstream_st* stream) {
  switch (id) {
    case CodecId::kPlane:
      return PlaneGpuWrite(params, x_dev, scratch_dev, totals, out_dev, stream);
    case CodecId::kZvc:
      return ZvcGpuWrite(Lossless(params), x_dev, scratch_dev, totals, out_dev,
                         stream);
    default:
      return NoKernel(id);
  }
}

Status GpuDecode(CodecId id, const void* stream_dev, size_t stream_bytes,
                 DType dtype, int64_t n, int64_t channels, void* out_dev,
                 uint32_t* damaged_dev, CUstream_st* stream) {
  switch (id) {
    case CodecId::kPlane:
      return PlaneGpuDecode(stream_dev, stream_bytes, dtype, n, channels, out_dev,
                            damaged_dev, stream);
    case CodecId::kZvc:
      return ZvcGpuDecode(stream_dev, stream_bytes, dtype, n, channels, out_dev,
                          damaged_dev, stream);
    default:
      return NoKernel(id);
  }
}

Status GpuMaskGradient(CodecId id, const void* stream_dev, size_t stream_bytes,
                       DType dtype, int64_t n, int64_t channels,
                       const void* dy_dev, void* dx_dev, uint32_t* damaged_dev,
                       CUstream_st* stream) {
  switch (id) {
    case CodecId::kPlane:
      return PlaneGpuMaskGradient(stream_dev, stream_bytes, dtype, n, channels,
                                  dy_dev, dx_dev, damaged_dev, stream);
    case CodecId::kZvc:
      return ZvcGpuMaskGradient(stream_dev, stream_bytes, dtype, n, channels,
                                dy_dev, dx_dev, damaged_dev, stream);
    default:
      return NoKernel(id);
  }
}

}  // namespace comptrain
