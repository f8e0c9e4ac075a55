// Code for a warp of 32 lanes, written once: on a GPU each lane is a thread, on
// a CPU (for tests) a turn of a loop. Between two calls lanes share nothing but
// what the calls exchange.
#ifndef TF_COMPTRAIN_CC_CODEC_WARP_H_
#define TF_COMPTRAIN_CC_CODEC_WARP_H_

#include <cstdint>

#include "cc/codec/host_device.h"

namespace comptrain {

constexpr int kWarpLanes = 32;

// Lanes: a variable of which every lane has its own.
//   Each(f)       f(lane) in every lane; what it wrote is seen by all lanes after
//   Ballot(f)     bit l: whether f(l)
//   Sum(f)        of the ints f(lane)
//   At(v, lane)   v of one lane
class HostWarp {
 public:
  template <class T>
  struct Lanes {
    T v[kWarpLanes] = {};
    T& operator[](int lane) { return v[lane]; }
  };

  template <class F>
  void Each(const F& f) const {
    for (int lane = 0; lane < kWarpLanes; ++lane) f(lane);
  }
  template <class F>
  uint32_t Ballot(const F& f) const {
    uint32_t bits = 0;
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      bits |= static_cast<uint32_t>(f(lane) ? 1 : 0) << lane;
    }
    return bits;
  }
  template <class F>
  int Sum(const F& f) const {
    int sum = 0;
    for (int lane = 0; lane < kWarpLanes; ++lane) sum += f(lane);
    return sum;
  }
  template <class T>
  T At(Lanes<T>& v, int lane) const {
    return v[lane];
  }
};

#ifdef __CUDACC__
class DeviceWarp {
 public:
  template <class T>
  struct Lanes {
    T v = {};
    __device__ T& operator[](int) { return v; }
  };

  __device__ explicit DeviceWarp(int lane) : lane_(lane) {}

  template <class F>
  __device__ void Each(const F& f) const {
    f(lane_);
    __syncwarp();
  }
  template <class F>
  __device__ uint32_t Ballot(const F& f) const {
    return __ballot_sync(kAll, f(lane_));
  }
  template <class F>
  __device__ int Sum(const F& f) const {
    int sum = f(lane_);
    for (int d = kWarpLanes / 2; d > 0; d /= 2) {
      sum += __shfl_xor_sync(kAll, sum, d);
    }
    return sum;
  }
  template <class T>
  __device__ T At(Lanes<T>& v, int lane) const {
    return __shfl_sync(kAll, v.v, lane);
  }

 private:
  static constexpr unsigned kAll = 0xffffffff;
  const int lane_;
};
#endif

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_WARP_H_
