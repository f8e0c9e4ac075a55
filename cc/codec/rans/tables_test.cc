// The tables of rans on a GPU: divisions by multiplication, tokens by search.
#include <random>

#include "cc/codec/rans/tables.h"
#include "cc/codec/testing/harness.h"

namespace comptrain::rans {
namespace {

// At and around every multiple's ends.
void TestEntries() {
  std::mt19937 random(7);
  long wrong = 0;
  for (uint32_t f = 1; f < kProbOne; ++f) {
    const uint32_t start = random() % (kProbOne - f);
    const CodeEntry entry(start, f);
    wrong += entry.frequency() != f;
    const uint32_t limit = f << (31 - kProbBits);
    for (int i = 0; i < 200; ++i) {
      const uint32_t multiple = random() % (1u << (31 - kProbBits)) * f;
      for (uint32_t state : {multiple, multiple - 1, multiple + f - 1,
                             static_cast<uint32_t>(random())}) {
        state %= limit;
        if (i == 0) state = limit - 1;
        wrong +=
            entry.Put(state) != (state / f << kProbBits) + state % f + start;
      }
    }
  }
  CHECK_EQ(wrong, 0);
}

void TestSearch() {
  SearchTables tables;
  for (const auto& frequencies : kBuiltInFrequencies) {
    for (int c = 0; c < kContexts; ++c) {
      const uint16_t* f = frequencies + c * kTokens;
      CHECK(tables.Fill(c, f));
      long wrong = 0;
      uint32_t slot = 0;
      for (int k = 0; k < kTokens; ++k) {
        for (int i = 0; i < f[k]; ++i, ++slot)
          wrong += tables.Find(c, slot) != k;
      }
      CHECK_EQ(wrong, 0);
    }
  }
  uint16_t none[kTokens] = {};
  CHECK(!tables.Fill(0, none));
}

}  // namespace
}  // namespace comptrain::rans

int main() {
  comptrain::rans::TestEntries();
  comptrain::rans::TestSearch();
  return comptrain::FinishTests();
}
