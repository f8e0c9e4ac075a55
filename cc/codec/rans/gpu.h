// rans on a GPU.
#pragma once

#include "cc/codec/stream/gpu.h"

namespace comptrain {

extern const GpuEncoder kGpuRansEncoder;
extern const GpuDecoder kGpuRansDecoder;

}  // namespace comptrain
