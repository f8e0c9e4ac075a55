// Host code alone; a .cu file so that it is built where the kernels are.
#include "cc/codec/codec_gpu.h"

#include "cc/codec/plane_gpu.h"
#include "cc/codec/rans_gpu.h"
#include "cc/codec/zvc_gpu.h"

namespace comptrain {
namespace {

ZvcParams Lossless(const EncodeParams& p) { return {p.dtype, p.n, p.channels}; }

// read(codec) for every codec that the stream may be of.
template <class Read>
Status ForReaders(CodecId id, const GpuEncoded& from, const Read& read) {
  if (!from.any_codec) return read(id);
  for (CodecId reader : {CodecId::kPlane, CodecId::kRans, CodecId::kZvc}) {
    const Status s = read(reader);
    if (!s.ok()) return s;
  }
  return {};
}

}  // namespace

size_t GpuScratchBytes(CodecId id, const EncodeParams& params) {
  switch (id) {
    case CodecId::kRans:
      return RansGpuScratchBytes(params);
    case CodecId::kZvc:
      return ZvcGpuScratchBytes(Lossless(params));
    case CodecId::kPlane:
      break;
  }
  return PlaneGpuScratchBytes(params);
}

size_t GpuStreamBytes(CodecId id, const EncodeParams& params,
                      const GpuTotals& totals) {
  switch (id) {
    case CodecId::kRans:
      return RansGpuBytes(params, totals);
    case CodecId::kZvc:
      return ZvcGpuBytes(Lossless(params), totals);
    case CodecId::kPlane:
      break;
  }
  return PlaneGpuBytes(params, totals);
}

Status GpuMeasure(CodecId id, const EncodeParams& params, const void* x_dev,
                  void* scratch_dev, GpuTotals* totals, CUstream_st* stream) {
  switch (id) {
    case CodecId::kRans:
      return RansGpuMeasure(params, x_dev, scratch_dev, totals, stream);
    case CodecId::kZvc:
      return ZvcGpuMeasure(Lossless(params), x_dev, scratch_dev, totals, stream);
    case CodecId::kPlane:
      break;
  }
  return PlaneGpuMeasure(params, x_dev, scratch_dev, totals, stream);
}

Status GpuWrite(CodecId id, const EncodeParams& params, const void* x_dev,
                const void* scratch_dev, const GpuTotals& totals, void* out_dev,
                CUstream_st* stream) {
  switch (id) {
    case CodecId::kRans:
      return RansGpuWrite(params, x_dev, scratch_dev, totals, out_dev, stream);
    case CodecId::kZvc:
      return ZvcGpuWrite(Lossless(params), x_dev, scratch_dev, totals, out_dev,
                         stream);
    case CodecId::kPlane:
      break;
  }
  return PlaneGpuWrite(params, x_dev, scratch_dev, totals, out_dev, stream);
}

Status GpuDecode(CodecId id, const GpuEncoded& from, void* out_dev,
                 CUstream_st* stream) {
  return ForReaders(id, from, [&](CodecId reader) {
    switch (reader) {
      case CodecId::kRans:
        return RansGpuDecode(from, out_dev, stream);
      case CodecId::kZvc:
        return ZvcGpuDecode(from, out_dev, stream);
      case CodecId::kPlane:
        break;
    }
    return PlaneGpuDecode(from, out_dev, stream);
  });
}

Status GpuMaskGradient(CodecId id, const GpuEncoded& from, const void* dy_dev,
                       void* dx_dev, CUstream_st* stream) {
  return ForReaders(id, from, [&](CodecId reader) {
    switch (reader) {
      case CodecId::kRans:
        return RansGpuMaskGradient(from, dy_dev, dx_dev, stream);
      case CodecId::kZvc:
        return ZvcGpuMaskGradient(from, dy_dev, dx_dev, stream);
      case CodecId::kPlane:
        break;
    }
    return PlaneGpuMaskGradient(from, dy_dev, dx_dev, stream);
  });
}

}  // namespace comptrain
