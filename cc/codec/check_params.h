// The checks of parameters that encoders have in common.
#ifndef TF_COMPTRAIN_CC_CODEC_CHECK_PARAMS_H_
#define TF_COMPTRAIN_CC_CODEC_CHECK_PARAMS_H_

#include <cstdint>

#include "cc/codec/plane.h"
#include "cc/codec/status.h"
#include "cc/codec/stream.h"

namespace comptrain {

// The tensor, and whether this machine has the instruction set. codec: its
// letter, as messages name it.
Status CheckTensor(char codec, int64_t n, int64_t channels, DType dtype,
                   Isa isa);

// The same and the error bound.
Status CheckParams(char codec, const PlaneParams& params, Isa isa);

// Whether a stream with so many chunks and such a payload offset can be laid
// out.
Status CheckSize(char codec, int64_t n, int64_t chunks,
                 uint64_t payload_offset);

Status CheckIsa(char codec, Isa isa);

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_CHECK_PARAMS_H_
