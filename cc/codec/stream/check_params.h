// What the encoders of all codecs check of their parameters, and how they say
// it.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "cc/codec/common/isa.h"
#include "cc/codec/common/status.h"
#include "cc/codec/stream/params.h"

namespace comptrain {

// As messages and the attribute of the ops have it.
const char* CodecName(CodecId codec);

// The tensor, and whether this machine has the instruction set.
Status CheckTensor(CodecId codec, int64_t n, int64_t channels, DType dtype,
                   Isa isa);

// The same and the error bound.
Status CheckParams(CodecId codec, const EncodeParams& params, Isa isa);

// Whether a stream with so many chunks and such a payload offset can be laid
// out.
Status CheckSize(CodecId codec, int64_t n, int64_t chunks,
                 uint64_t payload_offset);

// Whether a stream's table can count so many words of payload.
Status CheckWords(CodecId codec, uint64_t words);

// doing: "encoding" or "decoding".
Status OutOfMemory(CodecId codec, const char* doing, const std::exception& e);

Status CheckIsa(CodecId codec, Isa isa);

}  // namespace comptrain
