// rans' tables as a GPU holds them: tokens by value, and by their place in the
// frequencies. What the CPU has is in rans_code.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/codec/common/bits.h"
#include "cc/codec/common/host_device.h"
#include "cc/codec/rans/code.h"
#include "cc/codec/rans/layout.h"

namespace comptrain::rans {

// How a token is written: token | raw bits << 4 | its first code << 8.
struct TokenEntry {
  uint32_t packed;

  COMPTRAIN_HD int token() const { return packed & 15; }
  COMPTRAIN_HD int bits() const { return packed >> 4 & 15; }
  COMPTRAIN_HD uint32_t base() const { return packed >> 8; }
  COMPTRAIN_HD TokenEntry Shifted(int shift) const {
    if (token() == kEscape) return *this;
    return {packed + (static_cast<uint32_t>(shift) << 4) +
            (((base() << shift) - base()) << 8)};
  }
};

constexpr int kTableValues = 128;  // larger ones count as the last

// kByteTables, and the tokens by code >> shift (the last: escape) and by
// number.
struct LaneTables {
  TokenEntry of_value[kTableValues + 1];
  TokenEntry of_token[kTokens];
  uint8_t context[kTableValues];
  uint8_t size[kTableValues];
  uint8_t median[16];

  COMPTRAIN_HD TokenEntry TokenOf(uint32_t v) const {
    return of_value[v >= kEscapeFrom ? kTableValues
                                     : Smaller<uint32_t>(v, kTableValues - 1)];
  }
  // neighbours: a NeighbourSum. median_part: of the lane's median level.
  COMPTRAIN_HD int ContextOf(int neighbours, bool negative,
                             int median_part) const {
    return negative ? context[neighbours] : size[neighbours] + median_part;
  }
};

constexpr LaneTables MakeLaneTables() {
  LaneTables t = {};
  for (int k = 0; k < kTokens; ++k) {
    const uint32_t bits = k == kEscape ? kEscapeBits : kTokenBits[k];
    t.of_token[k].packed = static_cast<uint32_t>(k) | bits << 4 |
                           static_cast<uint32_t>(kTokenBase[k]) << 8;
  }
  for (int v = 0; v < kTableValues; ++v) {
    t.of_value[v] = t.of_token[kByteTables.token[v]];
    t.context[v] = kByteTables.context[v];
    t.size[v] = kByteTables.size[v];
  }
  t.of_value[kTableValues] = t.of_token[kEscape];
  for (int v = 0; v < 16; ++v) t.median[v] = kByteTables.median[v];
  return t;
}
constexpr LaneTables kLaneTables = MakeLaneTables();

// Words of the tables, of which the first so many are tokens, to be shifted.
constexpr int kLaneTableWords = sizeof(LaneTables) / 4;
constexpr int kTokenWords = kTableValues + 1 + kTokens;
COMPTRAIN_HD static inline uint32_t ShiftedWord(const LaneTables& tables, int i,
                                                int shift) {
  uint32_t word;
  memcpy(&word, reinterpret_cast<const uint8_t*>(&tables) + 4 * i, sizeof word);
  return i < kTokenWords ? TokenEntry{word}.Shifted(shift).packed : word;
}

// What coding a token needs of its frequency f and its start: division by f as
// a multiplication, exact for states below 2^31.
struct CodeEntry {
  uint32_t reciprocal;  // ceil(2^(31 + log2) / f)
  uint32_t packed;      // start | f << 12 | log2 << 24, log2 = ceil(log2 f)

  CodeEntry() = default;
  COMPTRAIN_HD CodeEntry(uint32_t start, uint32_t f) {
    const uint32_t log2 = BitLength(f - 1);
    reciprocal =
        static_cast<uint32_t>(((uint64_t{1} << (31 + log2)) + f - 1) / f);
    packed = start | f << 12 | log2 << 24;
  }

  COMPTRAIN_HD uint32_t frequency() const { return packed >> 12 & 4095; }
  // state / f * 4096 + state % f + start
  COMPTRAIN_HD uint32_t Put(uint32_t state) const {
    const uint32_t quotient = static_cast<uint32_t>(
        uint64_t{state << 1} * reciprocal >> 32 >> (packed >> 24));
    return state + (packed & 4095) + quotient * (kProbOne - frequency());
  }
};

// What chunks were sampled for, before any is coded.
struct Sample {
  uint64_t sum, count;       // of codes
  uint64_t lanes, negative;  // of chunks, and those with negative codes
  uint64_t counts[kContexts * kTokens];
};

COMPTRAIN_HD static inline Prior PriorOf(const Sample& s) {
  return 2 * s.negative > s.lanes ? kTwoSided : kOneSided;
}

// What the sample says.
struct WriterModel {
  int shift;
  uint32_t table;  // as in TableHead
  uint16_t freq[kContexts * kTokens];
  CodeEntry entries[kContexts * kTokens];

  // One context's part; built_in: kBuiltInFrequencies.
  COMPTRAIN_HD void Fill(const Sample& sample, bool counted,
                         const uint16_t (*built_in)[kContexts * kTokens],
                         int context) {
    const Prior prior = PriorOf(sample);
    shift = ShiftFor(sample.sum, sample.count);
    table = counted ? kCountedTable : static_cast<uint32_t>(prior);
    const int at = context * kTokens;
    uint16_t* f = freq + at;
    for (int k = 0; k < kTokens; ++k) f[k] = built_in[prior][at + k];
    if (counted) {
      NormalizeContext(sample.counts + at, built_in[prior] + at, f);
    }
    uint32_t start = 0;
    for (int k = 0; k < kTokens; ++k) {
      entries[at + k] = CodeEntry(start, f[k]);
      start += f[k];
    }
  }
};

// Tokens by their place in the frequencies, in two steps of four.
struct SearchTables {
  struct alignas(8) Starts {
    uint16_t of[4];
  };
  // [0]: of tokens 4, 8, 12; [1 + i]: of 4 i + 1, 4 i + 2, 4 i + 3.
  Starts starts[5][kContexts];
  uint32_t packed[kContexts * kTokens];  // start | f << 16

  // False when the frequencies of the context are none: see SetFrequencies.
  COMPTRAIN_HD bool Fill(int context, const uint16_t* freq) {
    uint32_t start = 0;
    for (int k = 0; k < kTokens; ++k) {
      const uint32_t f = freq[k];
      if (f == 0 || f >= kProbOne) return false;
      packed[context * kTokens + k] = start | f << 16;
      Starts& part = starts[k % 4 == 0 ? 0 : 1 + k / 4][context];
      if (k > 0) {
        part.of[k % 4 == 0 ? k / 4 - 1 : k % 4 - 1] =
            static_cast<uint16_t>(start);
      }
      start += f;
      if (start > kProbOne) return false;
    }
    return start == kProbOne;
  }

  COMPTRAIN_HD int Find(int context, uint32_t slot) const {
    const Starts coarse = starts[0][context];
    const int part = (slot >= coarse.of[0]) + (slot >= coarse.of[1]) +
                     (slot >= coarse.of[2]);
    const Starts fine = starts[1 + part][context];
    return 4 * part + (slot >= fine.of[0]) + (slot >= fine.of[1]) +
           (slot >= fine.of[2]);
  }
};

}  // namespace comptrain::rans
