// plane on a GPU.
#pragma once

#include "cc/codec/stream/gpu.h"

namespace comptrain {

extern const GpuEncoder kGpuPlaneEncoder;
extern const GpuDecoder kGpuPlaneDecoder;

}  // namespace comptrain
