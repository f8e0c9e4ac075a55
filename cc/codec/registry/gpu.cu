#include "cc/codec/registry/gpu.h"

#include "cc/codec/common/gpu_items.h"
#include "cc/codec/plane/gpu.h"
#include "cc/codec/rans/gpu.h"
#include "cc/codec/zvc/gpu.h"

namespace comptrain {
namespace {

struct Codec {
  CodecId id;
  const GpuEncoder& encoder;
  const GpuDecoder& decoder;
};

constexpr Codec kCodecs[] = {
    {CodecId::kPlane, kGpuPlaneEncoder, kGpuPlaneDecoder},
    {CodecId::kRans, kGpuRansEncoder, kGpuRansDecoder},
    {CodecId::kZvc, kGpuZvcEncoder, kGpuZvcDecoder},
};

// read(decoder) for every codec that the stream may be of.
template <class Read>
Status ForDecoders(CodecId id, const GpuEncoded& from, const Read& read) {
  for (const Codec& c : kCodecs) {
    if (!from.any_codec && c.id != id) continue;
    const Status s = read(c.decoder);
    if (!s.ok()) return s;
  }
  return {};
}

// Item: an element of the sample.
template <class T>
struct TakeSample {
  SamplePlan plan;
  const T* x;
  T* sample;

  COMPTRAIN_HD void operator()(int64_t item) const {
    const int64_t i = item % SamplePlan::kBlockValues;
    sample[item] = x[plan.First(item / SamplePlan::kBlockValues) +
                     i / plan.unit * plan.row + i % plan.unit];
  }
};

}  // namespace

const GpuEncoder& GpuEncoderOf(CodecId id) {
  for (const Codec& c : kCodecs) {
    if (c.id == id) return c.encoder;
  }
  return kCodecs[0].encoder;
}

Status GpuDecode(CodecId id, const GpuEncoded& from, void* out_dev,
                 CUstream_st* cuda_stream) {
  return ForDecoders(id, from, [&](const GpuDecoder& decoder) {
    return decoder.decode(from, out_dev, cuda_stream);
  });
}

Status GpuMaskGradient(CodecId id, const GpuEncoded& from, const void* dy_dev,
                       void* dx_dev, CUstream_st* cuda_stream) {
  return ForDecoders(id, from, [&](const GpuDecoder& decoder) {
    return decoder.mask_gradient(from, dy_dev, dx_dev, cuda_stream);
  });
}

Status GpuTakeSample(const void* x_dev, DType dtype, const SamplePlan& plan,
                     void* sample_dev, CUstream_st* cuda_stream) {
  return gpu::ForTypedItems(
      "taking a sample", dtype, plan.n,
      [&](auto type) {
        using T = decltype(type);
        return TakeSample<T>{plan, static_cast<const T*>(x_dev),
                             static_cast<T*>(sample_dev)};
      },
      cuda_stream);
}

}  // namespace comptrain
