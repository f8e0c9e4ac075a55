#include "cc/codec/rans_model.h"

#include <algorithm>

namespace comptrain {
namespace rans {

bool SetFrequencies(const uint16_t freq[kContexts * kTokens], Model* model) {
  for (int c = 0; c < kContexts; ++c) {
    uint32_t start = 0;
    for (int k = 0; k < kTokens; ++k) {
      const uint32_t f = freq[c * kTokens + k];
      if (f == 0 || f >= kProbOne) return false;
      model->start[k][c] = static_cast<uint16_t>(start);
      model->packed[c * kTokens + k] = start | f << 16;
      start += f;
      if (start > kProbOne) return false;
    }
    if (start != kProbOne) return false;
    model->start[kTokens][c] = kProbOne;
  }
  return true;
}

void MakeSlots(Model* model) {
  model->slots.resize(kContexts * kProbOne);
  for (int c = 0; c < kContexts; ++c) {
    uint32_t* out = model->slots.data() + c * kProbOne;
    for (uint32_t k = 0; k < kTokens; ++k) {
      const uint32_t packed = model->packed[c * kTokens + k];
      uint32_t* to = out + (packed & 0xffff);
      const uint32_t f = packed >> 16, entry = k | f << 16;
      for (uint32_t i = 0; i < f; ++i) to[i] = entry | i << 4;
    }
  }
}

// A built-in table weighs as much as 64 counts.
void Normalize(const uint64_t counts[kContexts * kTokens], Prior prior,
               uint16_t freq[kContexts * kTokens]) {
  constexpr uint64_t kWeight = kProbOne / 64;
  for (int c = 0; c < kContexts; ++c) {
    uint64_t weights[kTokens], total = 0;
    for (int k = 0; k < kTokens; ++k) {
      weights[k] = counts[c * kTokens + k] * kWeight +
                   kBuiltInFrequencies[prior][c * kTokens + k];
      total += weights[k];
    }
    int64_t left = kProbOne;
    int largest = 0;
    uint16_t* f = freq + c * kTokens;
    for (int k = 0; k < kTokens; ++k) {
      f[k] = static_cast<uint16_t>(
          std::max<uint64_t>(1, weights[k] * kProbOne / total));
      left -= f[k];
      if (f[k] > f[largest]) largest = k;
    }
    // Rounding down leaves little, at most 15 tokens are raised to 1, and the
    // largest has at least 1 / 16 of it all.
    f[largest] = static_cast<uint16_t>(f[largest] + left);
  }
}

}  // namespace rans
}  // namespace comptrain
