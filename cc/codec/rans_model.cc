#include "cc/codec/rans_model.h"

#include "cc/codec/rans_code.h"

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

void Normalize(const uint64_t counts[kContexts * kTokens], Prior prior,
               uint16_t freq[kContexts * kTokens]) {
  for (int i = 0; i < kContexts * kTokens; i += kTokens) {
    NormalizeContext(counts + i, kBuiltInFrequencies[prior] + i, freq + i);
  }
}

}  // namespace rans
}  // namespace comptrain
