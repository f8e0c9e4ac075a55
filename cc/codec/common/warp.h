// The lanes of a warp.
#pragma once

namespace comptrain {

constexpr int kWarpLanes = 32;
constexpr unsigned kAllLanes = 0xffffffff;  // of the exchanges of a whole warp

}  // namespace comptrain
