// rans' alphabet, contexts and probabilities.
//
// No inline function here: sources for wider instruction sets include this.
#pragma once

#include <cstdint>
#include <vector>

namespace comptrain::rans {

constexpr int kTokens = 16;
constexpr int kContexts = 32;
constexpr int kProbBits = 12;
constexpr uint32_t kProbOne = 1u << kProbBits;
constexpr int kMaxShift = 5;
constexpr int kMaxNeighbour = 31;  // larger codes count as this in contexts
constexpr int kEscape = 15;        // the token with kEscapeBits raw bits

// Token k holds the codes from kTokenBase[k] << shift on, and kTokenBits[k] +
// shift raw bits say which; the escape holds any code.
constexpr uint16_t kTokenBase[kTokens] = {0, 1, 2,  3,  4,  5,  6,   7,
                                          8, 9, 11, 15, 23, 39, 103, 0};
constexpr uint16_t kTokenBits[kTokens] = {0, 0, 0, 0, 0, 0, 0,  0,
                                          0, 1, 2, 3, 4, 6, 10, 0};
constexpr uint32_t kEscapeFrom = 1127;  // codes >> shift
// A state takes at most 15 bits at once; a chunk with a larger code is raw.
constexpr int kEscapeBits = 15;

// How large a lane's neighbours are: 3 left + left of left + 3 above + above of
// above, each at most kMaxNeighbour. The context of a lane with negative codes
// is how many of these that exceeds.
constexpr uint8_t kContextEdges[15] = {0,  2,  3,  5,  8,  11, 14, 18,
                                       24, 32, 40, 52, 66, 84, 110};
// In one without: how many of these it exceeds, and 4 times how many of those
// the median does. A ReLU's values crowd at zero, and where the median is near
// it they differ in one direction only.
constexpr uint8_t kSizeEdges[3] = {2, 8, 24};
constexpr uint8_t kMedianEdges[7] = {0, 1, 2, 3, 4, 6, 9};

// Lookups for values below 128 and 16; larger ones count as the last. [0] is 0.
struct ByteTables {
  alignas(64) uint8_t token[128];
  alignas(64) uint8_t context[128];
  alignas(64) uint8_t size[128];
  alignas(16) uint8_t median[16];
};

template <int kCount>
constexpr uint8_t EdgesBelow(int v, const uint8_t (&edges)[kCount]) {
  uint8_t count = 0;
  while (count < kCount && v > edges[count]) ++count;
  return count;
}

constexpr ByteTables MakeByteTables() {
  ByteTables t = {};
  for (int v = 0; v < 128; ++v) {
    int token = kEscape - 1;
    while (kTokenBase[token] > v) --token;
    t.token[v] = static_cast<uint8_t>(token);
    t.context[v] = EdgesBelow(v, kContextEdges);
    t.size[v] = EdgesBelow(v, kSizeEdges);
  }
  for (int v = 0; v < 16; ++v) {
    t.median[v] = static_cast<uint8_t>(4 * EdgesBelow(v, kMedianEdges));
  }
  return t;
}

constexpr ByteTables kByteTables = MakeByteTables();

// Everything a chunk needs to know of its stream.
struct Model {
  int stride = 0;  // rows up to the pixel above; 0: none
  int shift = 0;
  // start[k][c]: sum of the frequencies of tokens before k in context c.
  alignas(64) uint16_t start[kTokens + 1][kContexts];
  // By context * kTokens + token: start | frequency << 16.
  alignas(64) uint32_t packed[kContexts * kTokens];
  // Only for decoders that look tokens up by context << kProbBits | slot:
  // token | (slot - start) << 4 | frequency << 16.
  std::vector<uint32_t> slots;
};

// freq[c * kTokens + k], from 1 on, sums to kProbOne in each context. False if
// they do not: the model is then not usable.
bool SetFrequencies(const uint16_t freq[kContexts * kTokens], Model* model);
void MakeSlots(Model* model);

// Frequencies for small tensors, measured on activations of trained networks:
// of one sign, as outputs of ReLU, and of both.
enum Prior { kOneSided = 0, kTwoSided = 1 };
extern const uint16_t kBuiltInFrequencies[2][kContexts * kTokens];

// Frequencies for counts, in integers; unseen contexts stay as built in.
void Normalize(const uint64_t counts[kContexts * kTokens], Prior prior,
               uint16_t freq[kContexts * kTokens]);

}  // namespace comptrain::rans
