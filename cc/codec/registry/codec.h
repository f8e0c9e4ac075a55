// The codecs behind one face, for callers to whom the format does not matter:
// encoders by id, decoders by what the header of the stream says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/codec/common/parallel.h"
#include "cc/codec/common/isa.h"
#include "cc/codec/common/status.h"
#include "cc/codec/common/tensor.h"
#include "cc/codec/stream/encoder.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

// Null when the id is not a codec of this library.
std::unique_ptr<StreamEncoder> MakeEncoder(CodecId id,
                                           const EncodeParams& params,
                                           Isa isa = Isa::kBest);

// False when no codec has this name.
bool CodecFromName(const std::string& name, CodecId* id);

// A lossless codec takes no error bound.
inline bool IsLossless(CodecId id) { return id == CodecId::kZvc; }

// The codec whose stream this says it is; plane's where it names none.
CodecId StreamCodec(const uint8_t* stream, size_t stream_bytes);

// PlaneDecode and PlaneMaskGradient for a stream of any codec.
Status DecodeStream(const StreamIn& stream, void* out,
                    const ParallelFor& parallel, Isa isa = Isa::kBest);
Status StreamMaskGradient(const StreamIn& stream, const void* dy, void* dx,
                          const ParallelFor& parallel, Isa isa = Isa::kBest);

}  // namespace comptrain
