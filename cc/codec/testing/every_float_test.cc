// The promise of every codec on the bit patterns of float32: plane and rans,
// each coding and bounds from 1e-30 to 1e30, within the bound; zvc bit for bit;
// streams and values equal between instruction sets. A sample of 4 million
// values; COMPTRAIN_LONG=1: all 2^32 of them, the plain C++ loops, ten times as
// slow as the others, in one part of 64; COMPTRAIN_FROM=<part>: from there on.
// Two threads, some 10 MB each.
#include <atomic>
#include <chrono>
#include <cstdlib>

#include "cc/codec/testing/codecs.h"

namespace comptrain {
namespace {

constexpr float kBounds[] = {1e-30f, 1e-3f, 1.0f, 1e30f};
// A part is one tensor. Its runs are consecutive patterns, so of one magnitude:
// a tile or chunk that holds a value too large for a code is raw.
constexpr int64_t kPartValues = 1 << 17, kRunValues = 4096;
constexpr int64_t kPartRuns = kPartValues / kRunValues;
constexpr int64_t kAllParts = (int64_t{1} << 32) / kPartValues;
constexpr int64_t kPartsAtOnce = 64;
constexpr int64_t kScalarPartOf = 64;
constexpr int64_t kSampledRunOf = 1024;  // so many runs, one is in the sample

Bytes Part(int64_t part, bool all) {
  Bytes x(4 * kPartValues);
  for (int64_t i = 0; i < kPartValues; ++i) {
    int64_t run = part * kPartRuns + i / kRunValues;
    if (!all) {
      const uint32_t any = static_cast<uint32_t>(run) * 0x9e3779b1u;
      run = run * kSampledRunOf + any / (UINT32_MAX / kSampledRunOf + 1);
    }
    const auto bits = static_cast<uint32_t>(run * kRunValues + i % kRunValues);
    std::memcpy(x.data() + 4 * i, &bits, sizeof bits);
  }
  return x;
}

std::vector<Isa> IsasOf(int64_t part, bool all) {
  std::vector<Isa> isas = AvailableIsas();
  const bool scalar = !all || isas.size() == 1 || part % kScalarPartOf == 0;
  if (!scalar) isas.erase(isas.begin());
  return isas;
}

// The values that come back, the same from every instruction set.
Bytes RoundTrip(CodecId codec, const Bytes& x, const EncodeParams& p,
                const std::vector<Isa>& isas, const std::string& what) {
  const Bytes stream = EncodeWith(codec, x, p, isas[0]);
  const Bytes y = DecodeWith(stream, p, isas[0]);
  for (size_t i = 1; i < isas.size(); ++i) {
    CHECK_MSG(EncodeWith(codec, x, p, isas[i]) == stream, what + ": bytes");
    CHECK_MSG(DecodeWith(stream, p, isas[i]) == y, what + ": values");
  }
  return y;
}

// The number of values that break the promise, over all codecs.
int64_t CheckPart(int64_t part, bool all) {
  const Bytes x = Part(part, all);
  const std::vector<Isa> isas = IsasOf(part, all);
  const std::string of = "part " + std::to_string(part);
  int64_t broken = 0;
  for (CodecId codec : {CodecId::kPlane, CodecId::kRans}) {
    for (float eb : kBounds) {
      for (Coding coding : kCodings) {
        const EncodeParams p =
            ParamsOf(DType::kF32, kPartValues, 32, eb, coding);
        char what[80];
        std::snprintf(what, sizeof what, ", codec %d, bound %g, coding %d",
                      static_cast<int>(codec), eb, static_cast<int>(coding));
        const int64_t bad =
            Violations(x, RoundTrip(codec, x, p, isas, of + what), p);
        CHECK_MSG(bad == 0, of + what + ": " + std::to_string(bad));
        broken += bad;
      }
    }
  }
  const EncodeParams p =
      ParamsOf(DType::kF32, kPartValues, 32, 0, Coding::kPlain);
  const bool same = RoundTrip(CodecId::kZvc, x, p, isas, of + ", zvc") == x;
  CHECK_MSG(same, of + ", zvc: values that differ");
  return broken + !same;
}

void TestEveryFloat() {
  const char* wanted = std::getenv("COMPTRAIN_LONG");
  const bool all = wanted != nullptr && wanted[0] == '1';
  const char* from = std::getenv("COMPTRAIN_FROM");
  const int64_t first = all && from != nullptr ? std::atoll(from) : 0;
  const int64_t parts = all ? kAllParts : kAllParts / kSampledRunOf;
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int64_t> broken{0};
  for (int64_t part = first; part < parts;) {
    const int64_t n = std::min(kPartsAtOnce, parts - part);
    Threads(2)(n, 0, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) broken += CheckPart(part + i, all);
    });
    part += n;
    const std::chrono::duration<double> taken =
        std::chrono::steady_clock::now() - start;
    const double part_s = taken.count() / static_cast<double>(part - first);
    std::printf(
        "%5.1f%% in %.0f s, %.0f s left, %lld broken promises; to go on "
        "from here: COMPTRAIN_FROM=%lld\n",
        100.0 * static_cast<double>(part) / static_cast<double>(parts),
        taken.count(), part_s * static_cast<double>(parts - part),
        static_cast<long long>(broken), static_cast<long long>(part));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace comptrain

int main() {
  comptrain::TestEveryFloat();
  return comptrain::FinishTests();
}
