// rans on a GPU.
#ifndef TF_COMPTRAIN_CC_CODEC_RANS_GPU_H_
#define TF_COMPTRAIN_CC_CODEC_RANS_GPU_H_

#include "cc/codec/stream/gpu.h"

namespace comptrain {

const GpuEncoder& GpuRansEncoder();
const GpuDecoder& GpuRansDecoder();

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_RANS_GPU_H_
