// The lanes of a warp.
#ifndef TF_COMPTRAIN_CC_CODEC_COMMON_WARP_H_
#define TF_COMPTRAIN_CC_CODEC_COMMON_WARP_H_

namespace comptrain {

constexpr int kWarpLanes = 32;
constexpr unsigned kAllLanes = 0xffffffff;  // of the exchanges of a whole warp

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_COMMON_WARP_H_
