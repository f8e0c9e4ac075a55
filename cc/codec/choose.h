// Which codec suits a tensor.
#ifndef TF_COMPTRAIN_CC_CODEC_CHOOSE_H_
#define TF_COMPTRAIN_CC_CODEC_CHOOSE_H_

#include "cc/codec/codec.h"

namespace comptrain {

// Encodes a sample of x, at most 1 / 16 of it, with every codec, and takes
//  - codec C where it is no larger than A: as fast, and without loss;
//  - else codec B where it is smaller than A by kWorthCoding of A's bytes: dense
//    tensors, most of the time, and ReLU outputs of early layers;
//  - else codec A, which all tensors below kMinChosenValues get.
// Deterministic. params: as for MakeEncoder, checked there.
constexpr double kWorthCoding = 0.2;
constexpr int64_t kMinChosenValues = 1 << 16;
CodecId ChooseCodec(const void* x, const EncodeParams& params);

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_CHOOSE_H_
