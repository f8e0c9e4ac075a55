// The contract of the error-bounded codecs, plane and rans, on the CPU.
#pragma once

#include <array>

#include "cc/codec/testing/codecs.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace comptrain {

// What a codec's format has that another's has not.
struct BoundedCodec {
  CodecId id;
  const char* name;
  size_t (*max_bytes)(int64_t n, int64_t channels, DType dtype);
  std::vector<std::array<int64_t, 2>> shapes;  // (elements, channels)
  std::vector<int64_t> widths;
};

inline std::string Case(const BoundedCodec& codec, const EncodeParams& p,
                        const std::string& what) {
  return std::string(codec.name) + " " + what + ": dtype " +
         std::to_string(static_cast<int>(p.dtype)) + " n " +
         std::to_string(p.n) + " channels " + std::to_string(p.channels) +
         " width " + std::to_string(p.width) + " eb " + std::to_string(p.eb) +
         (p.mid_rise ? " mid-rise" : "");
}

// Every instruction set gives the same bytes, sums and values, within bound.
inline void CheckRoundTrip(const BoundedCodec& codec, const Bytes& x,
                           const EncodeParams& p, const std::string& what) {
  const Encoded reference = EncodeWithStats(codec.id, x, p, Isa::kScalar);
  CHECK(reference.stream.size() <= codec.max_bytes(p.n, p.channels, p.dtype));
  const Bytes y = DecodeWith(reference.stream, p, Isa::kScalar);
  CHECK_MSG(Violations(x, y, p) == 0, Case(codec, p, what));
  for (Isa isa : AvailableIsas()) {
    const Encoded e = EncodeWithStats(codec.id, x, p, isa);
    CHECK_MSG(e.stream == reference.stream, Case(codec, p, what + " bytes"));
    CHECK_MSG(e.nonzero == reference.nonzero,
              Case(codec, p, what + " non-zeros"));
    CHECK_MSG(DecodeWith(e.stream, p, isa) == y,
              Case(codec, p, what + " values"));
  }
}

// Gaussian values; some channels zero, some sparse, some of another scale.
inline std::vector<float> Activations(int64_t n, int64_t channels, bool relu,
                                      uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (int64_t i = 0; i < n; ++i) {
    const int kind = static_cast<int>(i % channels % 7);
    float v = normal(random);
    if (kind == 1) v *= 4;
    if (kind == 2) v = random() % 8 == 0 ? v : 0;
    if (kind == 3) v = 0;
    if (kind == 4) v = 3 + 0.2f * v;
    x[i] = relu && v < 0 ? 0 : v;
  }
  return x;
}

inline void TestSizes(const BoundedCodec& codec) {
  std::vector<std::array<int64_t, 2>> shapes = {
      {0, 1},      {1, 1},      {2, 1},      {31, 31},     {32, 32},
      {65536, 32}, {65568, 32}, {66560, 64}, {5000, 5},    {7000, 7},
      {38400, 96}, {2112, 33},  {40000, 40}, {200704, 256}};
  shapes.insert(shapes.end(), codec.shapes.begin(), codec.shapes.end());
  for (DType dtype : kAllDTypes) {
    for (bool mid_rise : {false, true}) {
      for (bool relu : {false, true}) {
        for (const auto& s : shapes) {
          const Bytes x = ToTensor(Activations(s[0], s[1], relu, 1), dtype);
          for (int64_t width : codec.widths) {
            CheckRoundTrip(codec, x,
                           Params(dtype, s[0], s[1], 0.07f, mid_rise, width),
                           "sizes");
          }
        }
      }
    }
  }
}

// rans: chunks of 256 and 512 pixels, predicted lanes, the counted table.
inline void TestLargeChunks(const BoundedCodec& codec) {
  for (int64_t n : {int64_t{1} << 20, (int64_t{1} << 22) + 32 * 64 * 3}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<float> v = Activations(n, 64, false, 20);
      for (int64_t i = 64 * 16; i < n; ++i) {
        if (i % 64 < 40) v[i] = 0.2f * v[i] + 0.5f * (v[i - 64] + v[i - 1024]);
      }
      const Bytes x = ToTensor(v, dtype);
      for (float eb : {0.1f, 0.0005f}) {
        const bool mid_rise = dtype == DType::kF32;
        CheckRoundTrip(codec, x, Params(dtype, n, 64, eb, mid_rise, 16),
                       "large");
      }
    }
  }
}

inline void TestBounds(const BoundedCodec& codec) {
  for (DType dtype : kAllDTypes) {
    for (bool mid_rise : {false, true}) {
      for (float eb = 1e-6f; eb < 20; eb *= 3) {
        for (int64_t channels : {64, 24}) {
          const EncodeParams p = Params(dtype, 9600, channels, eb, mid_rise);
          for (bool relu : {false, true}) {
            const auto v = Activations(p.n, channels, relu, 2 + relu);
            CheckRoundTrip(codec, ToTensor(v, dtype), p,
                           relu ? "bounds relu" : "bounds");
          }
        }
      }
    }
  }
}

// Codes at and around the limits of narrow, verified and 16-bit codes.
inline void TestCodeLimits(const BoundedCodec& codec) {
  for (bool mid_rise : {false, true}) {
    for (float sign : {1.0f, -1.0f}) {
      for (float edge : {7.f, 31.f, 127.f, 128.f, 255.f, 256.f, 257.f, 511.f,
                         512.f, 4096.f, 32767.f, 32768.f, 65535.f, 65536.f}) {
        std::mt19937 random(static_cast<uint32_t>(edge));
        std::vector<float> x(4096);
        for (size_t i = 0; i < x.size(); ++i) {
          const float near =
              edge + static_cast<float>(random() % 9) * 0.25f - 1;
          x[i] = random() % 3 ? 0 : sign * near;
          if (i >= 2048 && random() % 2) x[i] = -x[i];
        }
        for (DType dtype : {DType::kF32, DType::kBF16}) {
          CheckRoundTrip(codec, ToTensor(x, dtype),
                         Params(dtype, 4096, 32, 0.5f, mid_rise), "limits");
        }
      }
    }
  }
}

inline void TestSpecialValues(const BoundedCodec& codec) {
  const float kInf = HUGE_VALF;
  const std::vector<std::vector<float>> kinds = {{0},
                                                 {-0.0f},
                                                 {1},
                                                 {-2.5f},
                                                 {NAN},
                                                 {kInf},
                                                 {-kInf},
                                                 {kInf, -kInf, NAN},
                                                 {1e-40f, -1e-42f, 0, 1},
                                                 {FLT_MAX, -FLT_MAX},
                                                 {FLT_MAX, 1, 0},
                                                 {FLT_MIN, -FLT_MIN, 0},
                                                 {65504, -65504, 1},
                                                 {1e30f, -1e30f},
                                                 {NAN, 0, 0, 0, 1, 2, -3},
                                                 {0, 0, 0, 0.01f},
                                                 {6e-8f, -6e-8f, 0}};
  for (DType dtype : kAllDTypes) {
    for (bool mid_rise : {false, true}) {
      for (float eb : {1.2e-38f * 4, 1e-6f, 0.05f, 100.0f, 1e37f}) {
        for (size_t k = 0; k < kinds.size(); ++k) {
          std::vector<float> x(2080);
          for (size_t i = 0; i < x.size(); ++i) {
            x[i] = i < 1024 || i % 5 ? kinds[k][i % kinds[k].size()] : 0.5f;
          }
          CheckRoundTrip(codec, ToTensor(x, dtype),
                         Params(dtype, 2080, 32, eb, mid_rise),
                         "special " + std::to_string(k));
        }
      }
    }
  }
}

// TensorFlow's threads flush subnormals to zero: same bytes, same values.
inline void TestFlushToZero(const BoundedCodec& codec) {
#if defined(__x86_64__)
  std::mt19937 random(10);
  std::vector<float> v(4096);
  for (float& f : v) {
    f = BitsFloat(static_cast<uint32_t>(random()) &
                  0x80ffffff);  // near FLT_MIN
    if (random() % 4 == 0) f = 1.5f * FLT_MIN;
  }
  for (DType dtype : kAllDTypes) {
    for (bool mid_rise : {false, true}) {
      for (float eb : {2.4e-38f, 1e-37f, 1e-7f}) {
        const EncodeParams p = Params(dtype, 4096, 32, eb, mid_rise);
        const Bytes x = ToTensor(v, dtype);
        for (Isa isa : AvailableIsas()) {
          const Bytes stream = EncodeWith(codec.id, x, p, isa);
          const Bytes y = DecodeWith(stream, p, isa);
          const unsigned csr = _mm_getcsr();
          _mm_setcsr(csr | 0x8040);  // FTZ and DAZ
          const bool same_stream = EncodeWith(codec.id, x, p, isa) == stream;
          const bool same_values = DecodeWith(stream, p, isa) == y;
          _mm_setcsr(csr);
          CHECK_MSG(same_stream && same_values,
                    Case(codec, p, "flush to zero"));
        }
      }
    }
  }
#endif
}

// -0 decodes as +0; an all-zero tensor is header, directory and table head.
inline void TestZeros(const BoundedCodec& codec) {
  for (bool mid_rise : {false, true}) {
    const EncodeParams p = Params(DType::kF32, 4096, 64, 0.1f, mid_rise);
    for (float zero : {0.0f, -0.0f, 1e-41f}) {
      const Bytes x = ToTensor(std::vector<float>(4096, zero), DType::kF32);
      for (Isa isa : AvailableIsas()) {
        const Bytes stream = EncodeWith(codec.id, x, p, isa);
        CHECK_EQ(stream.size(), size_t{64 + 16 + 16});
        CHECK(DecodeWith(stream, p, isa) == Bytes(4096 * 4, 0));
      }
    }
  }
}

// Bytes do not depend on threads, scratch or its alignment.
inline void TestThreadsAndScratch(const BoundedCodec& codec) {
  for (int64_t channels : {256, 48, 24}) {
    const EncodeParams p = Params(DType::kF32, 96 * 4096, channels, 0.1f, true);
    const Bytes x = ToTensor(Activations(p.n, channels, true, 4), DType::kF32);
    for (Isa isa : AvailableIsas()) {
      const Bytes expected = EncodeWith(codec.id, x, p, isa);
      const Bytes y = DecodeWith(expected, p, isa);
      for (const ParallelFor& parallel : ParallelVariants()) {
        for (int64_t scratch : {-1, 0, 1, 5, 1000, 40001, 150002, 400003}) {
          CHECK_MSG(
              EncodeWithStats(codec.id, x, p, isa, parallel, scratch).stream ==
                  expected,
              Case(codec, p, "scratch " + std::to_string(scratch)));
        }
        CHECK(DecodeWith(expected, p, isa, parallel) == y);
      }
    }
  }
}

inline void TestNonzero(const BoundedCodec& codec) {
  for (Coding coding : {Coding::kPlain, Coding::kMidRise, Coding::kDither}) {
    const EncodeParams p = ParamsOf(DType::kF32, 5000, 8, 0.05f, coding);
    std::vector<float> v = Activations(p.n, 8, false, 5);
    v[17] = NAN;
    v[4000] = HUGE_VALF;
    v[2000] = 1e30f;
    v[2001] = 1e-40f;  // counts as zero
    v[2002] = 1e-6f;   // its code is 0 without a mask
    const auto zeros = std::count_if(v.begin(), v.end(), IsZeroValue);
    const Bytes x = ToTensor(v, DType::kF32);
    for (Isa isa : AvailableIsas()) {
      CHECK_EQ(EncodeWithStats(codec.id, x, p, isa).nonzero, p.n - zeros);
    }
  }
}

// Channels of other scales, and far from zero: each within its own bound, the
// zeros of dither and mid-rise exact, for any seed.
inline void TestScales(const BoundedCodec& codec) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int64_t channels : {1, 2, 3, 8, 16, 24, 31, 32, 40, 48, 64, 100, 256}) {
    for (DType dtype : kAllDTypes) {
      for (Coding coding :
           {Coding::kPlain, Coding::kMidRise, Coding::kDither}) {
        std::vector<int8_t> exponents(channels);
        std::vector<int16_t> centres(channels);
        for (int64_t c = 0; c < channels; ++c) {
          exponents[c] = -static_cast<int8_t>(random() % 15);
          centres[c] = static_cast<int16_t>(random() % 3 == 0   ? 0
                                            : random() % 4 == 0 ? random()
                                                                : random() % 9);
        }
        const bool relu = random() % 2;
        EncodeParams p =
            ParamsOf(dtype, 300 * channels, channels, 0.07f, coding);
        p.scales.exponents = random() % 4 ? exponents.data() : nullptr;
        if (coding == Coding::kDither && random() % 4) {
          p.scales.centres = centres.data();
        }
        p.seed =
            coding == Coding::kDither ? static_cast<uint32_t>(random()) : 0;
        std::vector<float> v(p.n);
        for (int64_t i = 0; i < p.n; ++i) {
          const int64_t c = i % channels;
          const float scale =
              std::ldexp(1.0f, p.scales.exponents ? exponents[c] : 0);
          const float centre = p.scales.centres ? 0.14f * centres[c] : 0;
          v[i] = scale * (centre + normal(random));
          if (relu && v[i] < 0) v[i] = 0;
          if (random() % 50 == 0) v[i] = 100 * scale * normal(random);
        }
        v[0] = NAN;
        v[p.n / 2] = -HUGE_VALF;
        CheckRoundTrip(codec, ToTensor(v, dtype), p, "scales");
      }
    }
  }
}

inline void TestMaskGradient(const BoundedCodec& codec) {
  for (DType stored : kAllDTypes) {
    for (int64_t channels : {64, 32, 48, 40, 20, 3}) {
      const int64_t n = 60 * 320;
      const EncodeParams p = Params(stored, n, channels, 0.2f, true);
      std::vector<float> v = Activations(n, channels, true, 6);
      v[5] = 1e-39f;  // counts as zero (in f16 it is)
      v[100] = NAN;   // held raw
      v[9000] = 1e6f;
      const Bytes x = ToTensor(v, stored);
      const Bytes stream = EncodeWith(codec.id, x, p);
      for (DType dtype : kAllDTypes) {
        const size_t item = ItemBytes(dtype);
        Bytes dy(n * item), expected(n * item, 0);
        for (size_t i = 0; i < dy.size(); ++i) {
          dy[i] = static_cast<uint8_t>(i * 37 + 11);
        }
        for (int64_t i = 0; i < n; ++i) {
          if (IsZeroValue(LoadFloat(x.data(), stored, i))) continue;
          std::memcpy(&expected[i * item], &dy[i * item], item);
        }
        for (Isa isa : AvailableIsas()) {
          Bytes dx(n * item, 0x77);
          CHECK(StreamMaskGradient({stream.data(), stream.size(), dtype, n},
                                   dy.data(), dx.data(), Threads(2), isa)
                    .ok());
          CHECK_MSG(dx == expected, Case(codec, p, "mask"));
          Bytes in_place = dy;
          CHECK(StreamMaskGradient({stream.data(), stream.size(), dtype, n},
                                   in_place.data(), in_place.data(), SerialFor,
                                   isa)
                    .ok());
          CHECK(in_place == expected);
        }
      }
    }
  }
}

inline void TestInvalidArguments(const BoundedCodec& codec) {
  const auto fails = [&codec](const EncodeParams& p) {
    const Bytes x(1 << 16);
    const auto encoder = MakeEncoder(codec.id, p);
    const Status s = encoder->Encode(x.data(), nullptr, 0, SerialFor);
    Bytes out(1 << 16);
    return s.code == Code::kInvalidArgument && !s.message.empty() &&
           encoder->Write(out.data(), SerialFor).code == Code::kInvalidArgument;
  };
  const EncodeParams good = Params(DType::kF32, 96, 32, 0.1f, false);
  CHECK(!fails(good));
  for (float eb : {0.0f, -1.0f, NAN, HUGE_VALF, 1e-39f, 1e38f, FLT_MIN}) {
    EncodeParams p = good;
    p.eb = eb;
    CHECK_MSG(fails(p), "eb " + std::to_string(eb));
  }
  for (int64_t channels :
       {int64_t{0}, int64_t{-1}, int64_t{7}, int64_t{1} << 33}) {
    EncodeParams p = good;
    p.channels = channels;
    CHECK(fails(p));
  }
  EncodeParams p = good;
  p.n = -32;
  CHECK(fails(p));
}

// All but TestLargeChunks.
inline void TestBounded(const BoundedCodec& codec) {
  TestSizes(codec);
  TestBounds(codec);
  TestCodeLimits(codec);
  TestSpecialValues(codec);
  TestFlushToZero(codec);
  TestZeros(codec);
  TestThreadsAndScratch(codec);
  TestNonzero(codec);
  TestScales(codec);
  TestMaskGradient(codec);
  TestInvalidArguments(codec);
}

}  // namespace comptrain
