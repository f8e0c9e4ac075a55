// Codec C, a chunk by a warp (warp.h): what a GPU runs, and a test on the CPU.
// Lane l has elements l, l + 32, ... of the chunk; T is uint16_t or uint32_t,
// the bits of an element.
#ifndef TF_COMPTRAIN_CC_CODEC_ZVC_LANE_H_
#define TF_COMPTRAIN_CC_CODEC_ZVC_LANE_H_

#include <cstdint>

#include "cc/codec/bits.h"
#include "cc/codec/host_device.h"
#include "cc/codec/warp.h"
#include "cc/codec/zvc_layout.h"

namespace comptrain {
namespace zvc {

// Warp-wide reads under way at once.
constexpr int kBatch = 8;
static_assert(kMaskWords % kBatch == 0, "a chunk is whole batches");
static_assert(kMaskWords == 2 * kWarpLanes, "a lane has two words of the mask");

// Calls body(w, v) for each 32 elements of a chunk, v its lanes' elements (0
// past the end), until body has seen the last valid one.
template <class T, class Warp, class Body>
COMPTRAIN_HD void ForWords(const Warp& warp, const T* x, int valid,
                           const Body& body) {
  typename Warp::template Lanes<T> v[kBatch];
  for (int w = 0; 32 * w < valid; w += kBatch) {
    warp.Each([&](int lane) {
      COMPTRAIN_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const int at = 32 * (w + i) + lane;
        v[i][lane] = at < valid ? x[at] : T{0};
      }
    });
    COMPTRAIN_UNROLL
    for (int i = 0; i < kBatch; ++i) body(w + i, v[i]);
  }
}

// Elements with any bit set. see(value): every one of them, in its lane.
template <class T, class Warp, class See>
COMPTRAIN_HD int CountChunk(const Warp& warp, const T* x, int valid,
                            const See& see) {
  int count = 0;
  ForWords<T>(warp, x, valid, [&](int, auto& v) {
    count += PopCount(warp.Ballot([&](int lane) {
      if (v[lane] != 0) see(v[lane]);
      return v[lane] != 0;
    }));
  });
  return count;
}

// The words of a chunk: n_words as Layout::Words has them.
template <class T, class Warp>
COMPTRAIN_HD void WriteChunk(const Warp& warp, const Layout& layout, const T* x,
                             int valid, int n_words, uint32_t* words) {
  if (n_words == 0) return;
  if (n_words == static_cast<int>(layout.RawWords(valid))) {
    T* to = reinterpret_cast<T*>(words);
    ForWords<T>(warp, x, valid, [&](int w, auto& v) {
      warp.Each([&](int lane) {
        const int at = 32 * w + lane;
        if (at < valid) to[at] = v[lane];
      });
    });
    warp.Each([&](int lane) {
      if (lane == 0 && sizeof(T) == 2 && valid % 2 != 0) to[valid] = 0;
    });
    return;
  }
  const int mask_words = static_cast<int>(CeilDiv(valid, 32));
  T* values = reinterpret_cast<T*>(words + mask_words);
  typename Warp::template Lanes<uint32_t> low, high;  // words l, l + 32
  int count = 0;
  ForWords<T>(warp, x, valid, [&](int w, auto& v) {
    const uint32_t mask = warp.Ballot([&](int lane) { return v[lane] != 0; });
    warp.Each([&](int lane) {
      if (v[lane] != 0) values[count + PopCount(mask & BitsBelow(lane))] = v[lane];
      if (lane == w % 32) (w < 32 ? low : high)[lane] = mask;
    });
    count += PopCount(mask);
  });
  warp.Each([&](int lane) {
    if (lane < mask_words) words[lane] = low[lane];
    if (lane + 32 < mask_words) words[lane + 32] = high[lane];
    if (lane == 0 && sizeof(T) == 2 && count % 2 != 0) values[count] = 0;
  });
}

// Calls put(i, value) for every element; false, and nothing put, when the words
// do not add up.
template <class T, class Warp, class Put>
COMPTRAIN_HD bool ReadChunk(const Warp& warp, const Layout& layout,
                            const uint32_t* words, int n_words, int valid,
                            const Put& put) {
  const bool odd_item = sizeof(T) == 2;
  const int raw_words = static_cast<int>(layout.RawWords(valid));
  if (n_words == 0 || n_words == raw_words) {
    const T* from = reinterpret_cast<const T*>(words);
    if (n_words > 0 && odd_item && valid % 2 != 0 && from[valid] != 0) {
      return false;
    }
    ForWords<T>(warp, from, n_words == 0 ? 0 : valid, [&](int w, auto& v) {
      warp.Each([&](int lane) {
        if (32 * w + lane < valid) put(32 * w + lane, v[lane]);
      });
    });
    for (int w = 0; n_words == 0 && 32 * w < valid; ++w) {
      warp.Each([&](int lane) {
        if (32 * w + lane < valid) put(32 * w + lane, T{0});
      });
    }
    return true;
  }
  const int mask_words = static_cast<int>(CeilDiv(valid, 32));
  if (n_words > raw_words || n_words <= mask_words) return false;
  typename Warp::template Lanes<uint32_t> low, high;
  warp.Each([&](int lane) {
    low[lane] = lane < mask_words ? words[lane] : 0;
    high[lane] = lane + 32 < mask_words ? words[lane + 32] : 0;
  });
  const int total = warp.Sum(
      [&](int lane) { return PopCount(low[lane]) + PopCount(high[lane]); });
  if (valid % 32 != 0 && words[valid / 32] >> (valid % 32) != 0) return false;
  if (total == 0 ||
      n_words != static_cast<int>(layout.PackedWords(valid, total))) {
    return false;
  }
  const T* values = reinterpret_cast<const T*>(words + mask_words);
  if (odd_item && total % 2 != 0 && values[total] != 0) return false;
  int before = 0;
  for (int w = 0; w < mask_words; w += kBatch) {
    typename Warp::template Lanes<T> v[kBatch];
    COMPTRAIN_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t mask = w + i < 32 ? warp.At(low, w + i)
                                       : warp.At(high, w + i - 32);
      warp.Each([&](int lane) {
        const bool set = mask >> lane & 1;
        v[i][lane] = set ? values[before + PopCount(mask & BitsBelow(lane))] : T{0};
      });
      before += PopCount(mask);
    }
    warp.Each([&](int lane) {
      COMPTRAIN_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const int at = 32 * (w + i) + lane;
        if (at < valid) put(at, v[i][lane]);
      }
    });
  }
  return true;
}

}  // namespace zvc
}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_ZVC_LANE_H_
