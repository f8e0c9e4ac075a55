// zvc on a GPU.
#ifndef TF_COMPTRAIN_CC_CODEC_ZVC_GPU_H_
#define TF_COMPTRAIN_CC_CODEC_ZVC_GPU_H_

#include "cc/codec/stream/gpu.h"

namespace comptrain {

// Its totals count the elements whose bits are not all zero.
const GpuEncoder& GpuZvcEncoder();
const GpuDecoder& GpuZvcDecoder();

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_ZVC_GPU_H_
