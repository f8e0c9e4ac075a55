// Code for warps that share memory, written once: on a GPU a block of threads,
// on a CPU (for tests) loops. What the warps do one by one is in warp.h.
#ifndef TF_COMPTRAIN_CC_CODEC_TEAM_H_
#define TF_COMPTRAIN_CC_CODEC_TEAM_H_

#include <cstdint>

#include "cc/codec/host_device.h"
#include "cc/codec/warp.h"

namespace comptrain {

// Lanes: a variable of which every thread has its own; a CPU has one a lane.
// What was written is seen by all threads after each of
//   Each(f)            f(lane) in every thread
//   Rows(n, f)         f(t, lane) for rows 0 .. n - 1 and all lanes, in any order
//   Meanwhile(n, f, g) the same, by other warps than the one that does g(warp)
// and inside of Each, for a word that all threads share:
//   Or(word, bits), Add(word, value)
class HostTeam {
 public:
  template <class T>
  using Lanes = HostWarp::Lanes<T>;

  template <class F>
  void Each(const F& f) const {
    HostWarp().Each(f);
  }
  template <class F>
  void Rows(int n, const F& f) const {
    for (int t = 0; t < n; ++t) {
      for (int lane = 0; lane < kWarpLanes; ++lane) f(t, lane);
    }
  }
  template <class F, class G>
  void Meanwhile(int n, const F& f, const G& g) const {
    Rows(n, f);
    g(HostWarp());
  }
  void Or(uint32_t* word, uint32_t bits) const { *word |= bits; }
  void Add(uint32_t* word, uint32_t value) const { *word += value; }
};

#ifdef __CUDACC__
template <int kWarps>
class DeviceTeam {
 public:
  template <class T>
  using Lanes = DeviceWarp::Lanes<T>;

  __device__ DeviceTeam()
      : lane_(threadIdx.x % kWarpLanes), warp_(threadIdx.x / kWarpLanes) {}

  template <class F>
  __device__ void Each(const F& f) const {
    f(lane_);
    __syncthreads();
  }
  template <class F>
  __device__ void Rows(int n, const F& f) const {
#pragma unroll 4
    for (int t = warp_; t < n; t += kWarps) f(t, lane_);
    __syncthreads();
  }
  template <class F, class G>
  __device__ void Meanwhile(int n, const F& f, const G& g) const {
    if (warp_ == 0) {
      g(DeviceWarp(lane_));
    } else {
      for (int t = warp_ - 1; t < n; t += kWarps - 1) f(t, lane_);
    }
    __syncthreads();
  }
  __device__ void Or(uint32_t* word, uint32_t bits) const {
    for (int d = kWarpLanes / 2; d > 0; d /= 2) {
      bits |= __shfl_xor_sync(0xffffffff, bits, d);
    }
    if (lane_ == 0 && bits != 0) atomicOr(word, bits);
  }
  __device__ void Add(uint32_t* word, uint32_t value) const {
    atomicAdd(word, value);
  }

 private:
  const int lane_, warp_;
};
#endif

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_TEAM_H_
