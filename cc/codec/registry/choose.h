// Which codec suits a tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "cc/codec/registry/codec.h"
#include "cc/codec/common/host_device.h"

namespace comptrain {

constexpr double kWorthCoding = 0.2;
constexpr int64_t kMinChosenValues = 1 << 16;

// The sample of a tensor that its codec is chosen by, at most 1 / 16 of it:
// blocks of pixels x unit channels, one below the other, from places spread
// over the tensor. Empty below kMinChosenValues.
struct SamplePlan {
  // Of a block: a small chunk of rans.
  static constexpr int64_t kBlockValues = 4096;

  int64_t n = 0;              // elements
  int64_t row = 1, unit = 1;  // elements from pixel to pixel: tensor, sample
  int64_t blocks = 0, groups = 0, whole = 0;  // whole: blocks below each other

  SamplePlan() = default;
  explicit SamplePlan(const EncodeParams& params);

  // Where a block begins: the middle of each of `blocks` equal parts of the
  // tensor, another group of channels each time.
  COMPTRAIN_HD int64_t First(int64_t block) const {
    const int64_t down = (2 * block + 1) * whole / (2 * blocks);
    const int64_t across = (2 * block + 1) * groups / (2 * blocks);
    return down * (kBlockValues / unit) * row +
           (across + block) % groups * unit;
  }
};

std::vector<uint8_t> SampleOf(const void* x, DType dtype,
                              const SamplePlan& plan);

// Encodes the sample with every codec, and takes
//  - zvc where it is no larger than plane: as fast, and without loss;
//  - else rans where it is smaller than plane by kWorthCoding of its bytes:
//  dense
//    tensors, most of the time, and ReLU outputs of early layers;
//  - else plane, which tensors with an empty sample get.
// Deterministic. params: of the tensor, as for MakeEncoder, checked there.
CodecId ChooseBySample(const void* sample, const SamplePlan& plan,
                       const EncodeParams& params);
// The same for a tensor, from which the sample is taken.
CodecId ChooseCodec(const void* x, const EncodeParams& params);

}  // namespace comptrain
