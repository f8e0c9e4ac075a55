// The fuzz targets without a fuzzer: mutated streams from a fixed seed, the
// same ones every time. COMPTRAIN_MUTATIONS sets how many for each codec,
// COMPTRAIN_SEED which. With arguments: writes the seeds into that folder, as
// fuzz/<codec>_fuzz.cc starts from.
#include <cstdlib>
#include <fstream>
#include <string>

#include "cc/codec/testing/fuzz/seeds.h"
#include "cc/codec/testing/fuzz/targets.h"
#include "cc/codec/testing/harness.h"

namespace comptrain::fuzz {
namespace {

struct Target {
  const char* name;
  CodecId codec;
  int (*run)(const uint8_t* data, size_t size);
  int readers;  // in run
};

constexpr Target kTargets[] = {
    {"plane", CodecId::kPlane, FuzzPlane, 3},
    {"rans", CodecId::kRans, FuzzRans, 2},
    {"zvc", CodecId::kZvc, FuzzZvc, 2},
};

long FromEnvironment(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atol(text) : otherwise;
}

void Run(const Target& target) {
  const std::vector<Bytes> seeds = Seeds(target.codec);
  for (const Bytes& seed : seeds) {
    CHECK(target.run(seed.data(), seed.size()) >= target.readers - 1);
  }
  const long count = FromEnvironment("COMPTRAIN_MUTATIONS", 70000);
  std::mt19937 random(
      static_cast<uint32_t>(FromEnvironment("COMPTRAIN_SEED", 1)));
  long decoded = 0;
  for (long i = 0; i < count; ++i) {
    Bytes stream = seeds[random() % seeds.size()];
    Mutate(seeds, &random, &stream);
    stream.shrink_to_fit();
    decoded += target.run(stream.data(), stream.size()) > 0;
  }
  std::printf("%s: %ld of %ld mutated streams decoded to some tensor\n",
              target.name, decoded, count);
  CHECK(decoded < count);
}

void WriteSeeds(const Target& target, const std::string& folder) {
  int number = 0;
  for (const Bytes& seed : Seeds(target.codec)) {
    std::ofstream out(folder + "/" + target.name + std::to_string(number++),
                      std::ios::binary);
    out.write(reinterpret_cast<const char*>(seed.data()),
              static_cast<std::streamsize>(seed.size()));
    CHECK(out.good());
  }
}

}  // namespace
}  // namespace comptrain::fuzz

int main(int argc, char** argv) {
  for (const auto& target : comptrain::fuzz::kTargets) {
    if (argc > 1) {
      comptrain::fuzz::WriteSeeds(target, argv[1]);
    } else {
      comptrain::fuzz::Run(target);
    }
  }
  return comptrain::FinishTests();
}
