// Data for the tests of the element-wise codecs: random values mixed with the
// awkward ones, and memory in which every stray write or read shows.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "cc/codec/common/half.h"
#include "cc/codec/testing/harness.h"

namespace comptrain {

constexpr DType kAllDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Bytes of exactly the size asked for (so AddressSanitizer sees one too many),
// poisoned with a pattern that is a NaN in every dtype.
class Buffer {
 public:
  explicit Buffer(int64_t bytes, int misalign = 0)
      : bytes_(bytes),
        misalign_(misalign),
        data_(new uint8_t[bytes + misalign]) {
    std::memset(data(), 0xff, bytes);
  }
  uint8_t* data() { return data_.get() + misalign_; }
  const uint8_t* data() const { return data_.get() + misalign_; }
  int64_t bytes() const { return bytes_; }
  bool operator==(const Buffer& other) const {
    return bytes_ == other.bytes_ &&
           (bytes_ == 0 || std::memcmp(data(), other.data(), bytes_) == 0);
  }

 private:
  int64_t bytes_;
  int misalign_;
  std::unique_ptr<uint8_t[]> data_;
};

// Few distinct values, so that ties are common; one in `special` is a zero of
// either sign, an infinity, a NaN, a subnormal or the largest number (0: none).
inline void FillRandom(uint32_t seed, DType dtype, int64_t n, int special,
                       void* out) {
  const float awkward[] = {0.0f,   -0.0f,  INFINITY,  -INFINITY, NAN,  -NAN,
                           1e-40f, -6e-8f, 3.389e38f, -65504.0f, 6.0f, 1.0f};
  std::mt19937 random(seed);
  for (int64_t i = 0; i < n; ++i) {
    float v = static_cast<float>(static_cast<int>(random() % 33) - 16) / 2;
    if (special > 0 && random() % special == 0) v = awkward[random() % 12];
    StoreFloat(v, dtype, out, i);
  }
}

// The same number: any NaN for any NaN, zeros of either sign alike.
inline bool SameNumber(float a, float b) {
  return a == b || (a != a && b != b);
}

}  // namespace comptrain
