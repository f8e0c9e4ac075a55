// Compresses an array the way the training ops do, and checks the error bound.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "cc/codec/plane/plane.h"

int main() {
  // What a ReLU leaves: half zeros. 64 images of 32 x 32 pixels, 64 channels.
  comptrain::EncodeParams params;
  params.channels = 64;
  params.n = 64 * 32 * 32 * params.channels;
  params.eb = 0.1f;
  params.mid_rise = true;
  std::vector<float> x(params.n), decoded(params.n);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& v : x) v = std::max(0.0f, normal(random));

  const auto encoder = comptrain::MakePlaneEncoder(params);
  std::vector<uint8_t> scratch(encoder->scratch_bytes());
  comptrain::Status status = encoder->Encode(
      x.data(), scratch.data(), scratch.size(), comptrain::SerialFor);
  std::vector<uint8_t> stream(status.ok() ? encoder->total_bytes() : 0);
  if (status.ok()) status = encoder->Write(stream.data(), comptrain::SerialFor);
  if (status.ok()) {
    status = comptrain::PlaneDecode(
        {stream.data(), stream.size(), params.dtype, params.n}, decoded.data(),
        comptrain::SerialFor);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message.c_str());
    return 1;
  }

  float worst = 0;
  for (int64_t i = 0; i < params.n; ++i) {
    worst = std::max(worst, std::fabs(x[i] - decoded[i]));
  }
  std::printf("%zu -> %zu bytes (%.1f : 1), largest error %.6f, bound %.6f\n",
              x.size() * sizeof(float), stream.size(),
              double(x.size() * sizeof(float)) / double(stream.size()), worst,
              params.eb);
  return worst <= params.eb ? 0 : 1;
}
