// zvc on a GPU.
#pragma once

#include "cc/codec/stream/gpu.h"

namespace comptrain {

// Its totals count the elements whose bits are not all zero.
extern const GpuEncoder kGpuZvcEncoder;
extern const GpuDecoder kGpuZvcDecoder;

}  // namespace comptrain
