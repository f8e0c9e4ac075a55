// plane on a GPU.
#ifndef TF_COMPTRAIN_CC_CODEC_PLANE_GPU_H_
#define TF_COMPTRAIN_CC_CODEC_PLANE_GPU_H_

#include "cc/codec/stream/gpu.h"

namespace comptrain {

const GpuEncoder& GpuPlaneEncoder();
const GpuDecoder& GpuPlaneDecoder();

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_PLANE_GPU_H_
