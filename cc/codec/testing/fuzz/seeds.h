// Valid streams that fuzzers start from, and a mutator for runs without
// libFuzzer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cc/codec/registry/codec.h"
#include "cc/codec/common/half.h"

namespace comptrain::fuzz {

using Bytes = std::vector<uint8_t>;

// Zeros, sparse, dense, smooth, wide and non-finite parts, a tile or more each.
inline Bytes SeedTensor(DType dtype, int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Bytes x(n * ItemBytes(dtype));
  for (int64_t i = 0; i < n; ++i) {
    const float g = normal(random);
    const int64_t part = (i / 1024 + seed) % 6;
    const float v = part == 0   ? 0.0f
                    : part == 1 ? std::max(0.0f, g)
                    : part == 2 ? g
                    : part == 3 ? 5 + 0.1f * g
                    : part == 4 ? 1000 * g
                                : (i % 97 == 0 ? NAN : std::max(0.0f, g - 2));
    StoreFloat(v, dtype, x.data(), i);
  }
  return x;
}

// Streams of every type, of few and many, whole and cut off tiles and chunks.
inline std::vector<Bytes> Seeds(CodecId codec) {
  std::vector<Bytes> seeds;
  uint32_t seed = 0;
  std::vector<int8_t> exponents(64);
  std::vector<int16_t> centres(64);
  for (int c = 0; c < 64; ++c) {
    exponents[c] = static_cast<int8_t>(c % 7 - 6);
    centres[c] = static_cast<int16_t>(c % 5 == 0 ? 20 * c : 0);
  }
  const ChannelScales scales = {exponents.data(), centres.data()};
  EncodeParams p;
  p.eb = 0.1f;
  p.width = 10;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (int64_t channels : {32, 64, 48, 24, 20}) {
      for (int64_t pixels : {1, 33, 100}) {
        for (Coding coding :
             {Coding::kPlain, Coding::kMidRise, Coding::kDither}) {
          p.dtype = dtype;
          p.n = pixels * channels;
          p.channels = channels;
          p.mid_rise = coding == Coding::kMidRise;
          p.dither = coding == Coding::kDither;
          p.seed = p.dither ? seed : 0;
          p.scales = seed % 2 ? ChannelScales{} : scales;
          if (!p.dither) p.scales.centres = nullptr;
          const Bytes x = SeedTensor(dtype, p.n, seed++);
          const auto encoder = MakeEncoder(codec, p);
          Bytes stream;
          if (encoder->Encode(x.data(), nullptr, 0, SerialFor).ok()) {
            stream.resize(encoder->total_bytes());
            if (!encoder->Write(stream.data(), SerialFor).ok()) stream.clear();
          }
          seeds.push_back(stream);
        }
      }
    }
  }
  return seeds;
}

// Changes a stream in one to five ways: bits, bytes, u32 fields, lengths, parts
// moved or taken from another seed. Half of the changes hit the first bytes,
// where header, directory and table are.
inline void Mutate(const std::vector<Bytes>& seeds, std::mt19937* random,
                   Bytes* stream) {
  std::mt19937& r = *random;
  Bytes& s = *stream;
  for (int changes = 1 + static_cast<int>(r() % 5); changes > 0; --changes) {
    if (s.empty()) s.push_back(0);
    const size_t reach = r() % 2 ? s.size() : std::min<size_t>(s.size(), 160);
    const size_t at = r() % reach;
    const size_t length = std::min<size_t>(1 + r() % 40, s.size() - at);
    switch (r() % 8) {
      case 0:
      case 1:
        s[at] ^= static_cast<uint8_t>(1u << r() % 8);
        break;
      case 2:
        s[at] = static_cast<uint8_t>(r());
        break;
      case 3: {
        const uint32_t size = static_cast<uint32_t>(s.size());
        const uint32_t extremes[] = {
            0, 1, 0xffffffffu, 0x7fffffffu, 0x80000000u, size, size / 4};
        const uint32_t v = extremes[r() % 7] + r() % 3 - 1;
        std::memcpy(s.data() + at / 4 * 4, &v,
                    std::min<size_t>(4, s.size() - at / 4 * 4));
        break;
      }
      case 4:
        s.resize(r() % 4 ? s.size() - std::min<size_t>(s.size(), 4 * (r() % 9))
                         : at);
        break;
      case 5:
        s.insert(s.end(), r() % 65, static_cast<uint8_t>(r() % 2 ? 0 : r()));
        break;
      case 6:
        std::rotate(s.begin() + at, s.begin() + at + length / 2,
                    s.begin() + at + length);
        break;
      default: {
        const Bytes& other = seeds[r() % seeds.size()];
        for (size_t i = at; i < at + length && i < other.size(); ++i) {
          s[i] = other[i];
        }
      }
    }
  }
}

}  // namespace comptrain::fuzz
