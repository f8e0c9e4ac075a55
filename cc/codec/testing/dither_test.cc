// Subtractive dither in plane and rans: the promise, the same bytes everywhere,
// masks, and what it is for, an error that knows nothing of the data.
#include "cc/codec/layers/batch_norm.h"
#include "cc/codec/testing/codecs.h"

namespace comptrain {
namespace {

constexpr CodecId kLossy[] = {CodecId::kPlane, CodecId::kRans};

std::vector<float> Activations(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t part = i / 4096 % 4;
    const float g = normal(random);
    v[i] = part == 0   ? g
           : part == 1 ? std::max(0.0f, g)
           : part == 2 ? 40 * g
                       : 0.0f;
  }
  return v;
}

void TestSameBytesAndPromise() {
  for (CodecId codec : kLossy) {
    for (DType dtype : kAllDTypes) {
      for (int64_t channels : {64, 20}) {
        for (int64_t rows : {1, 33, 300, 1500}) {
          const EncodeParams p =
              ParamsOf(dtype, rows * channels, channels, 0.1f, Coding::kDither);
          std::vector<float> v = Activations(p.n, 3);
          v[p.n / 2] = -0.0f;
          v[p.n / 3] = 1e-40f;
          const Bytes x = ToTensor(v, dtype);
          const Bytes stream = EncodeWith(codec, x, p, Isa::kScalar);
          const Bytes y = DecodeWith(stream, p, Isa::kScalar);
          CHECK_EQ(Violations(x, y, p), 0);
          Bytes dx(x.size(), 0xcd), dy(x.size(), 0x3f), expected(x.size(), 0);
          const size_t item = ItemBytes(dtype);
          for (int64_t i = 0; i < p.n; ++i) {
            if (!IsZeroValue(LoadFloat(x.data(), dtype, i))) {
              std::fill_n(expected.begin() + i * item, item, uint8_t{0x3f});
            }
          }
          for (Isa isa : AvailableIsas()) {
            for (const ParallelFor& threads :
                 {ParallelFor(SerialFor), Threads(3)}) {
              CHECK(EncodeWith(codec, x, p, isa, threads) == stream);
              CHECK(DecodeWith(stream, p, isa, threads) == y);
              CHECK(
                  StreamMaskGradient({stream.data(), stream.size(), dtype, p.n},
                                     dy.data(), dx.data(), threads, isa)
                      .ok());
              CHECK(dx == expected);
            }
          }
        }
      }
    }
  }
}

// Codes around the ends of what needs no test, large ones, and none at all.
void TestLimits() {
  for (CodecId codec : kLossy) {
    for (Isa isa : AvailableIsas()) {
      const EncodeParams p =
          ParamsOf(DType::kF32, 1 << 16, 32, 0.01f, Coding::kDither);
      std::mt19937 random(5);
      std::vector<float> v(p.n);
      for (int64_t i = 0; i < p.n; ++i) {
        const float unit = static_cast<float>(random() % 4096) / 4096;
        const int64_t part = i / 4096 % 8;
        v[i] = (part < 2   ? 256 + 2 * unit
                : part < 4 ? -254 - 4 * unit
                : part < 6 ? 32760 + 20 * unit
                           : -32760 - 20 * unit) *
               0.02f;
      }
      v[50000] = NAN;
      v[100] = -INFINITY;
      v[9000] = 3e38f;
      const Bytes x = ToTensor(v, p.dtype);
      CHECK_EQ(
          Violations(x, DecodeWith(EncodeWith(codec, x, p, isa), p, isa), p),
          0);
    }
  }
}

// The smallest value is 2^-17 step, and must be a normal number; the largest
// subnormals are nearly as large, and count as zero.
void TestSmallestBound() {
  for (CodecId codec : kLossy) {
    for (Coding coding : {Coding::kDither, Coding::kMidRise}) {
      for (float eb : {7.72e-34f, 7.68e-34f}) {
        const EncodeParams p = ParamsOf(DType::kF32, 6400, 32, eb, coding);
        std::mt19937 random(6);
        std::vector<float> v(p.n);
        for (float& x : v) {
          const float unit = static_cast<float>(random() % 4096) / 4096;
          x = random() % 2 ? eb * (0.9f + 0.2f * unit)
                           : FLT_MIN * (0.999f * unit - 0.5f) * 1.99f;
        }
        const Bytes x = ToTensor(v, p.dtype);
        const bool supported = eb > 7.7e-34f || coding != Coding::kDither;
        Bytes scratch(1 << 20);
        const std::unique_ptr<StreamEncoder> encoder = MakeEncoder(codec, p);
        CHECK_EQ(
            encoder->Encode(x.data(), scratch.data(), scratch.size(), SerialFor)
                .ok(),
            supported);
        if (!supported) continue;
        const Bytes stream = EncodeWith(codec, x, p, Isa::kScalar);
        for (Isa isa : AvailableIsas()) {
          CHECK(EncodeWith(codec, x, p, isa) == stream);
        }
        const Bytes y = DecodeWith(stream, p);
        CHECK_EQ(Violations(x, y, p), 0);
        for (int64_t i = 0; i < p.n; ++i) {
          const float value = LoadFloat(y.data(), p.dtype, i);
          CHECK(value == 0 || std::isnormal(value));
        }
      }
    }
  }
}

void TestFlags() {
  EncodeParams p = ParamsOf(DType::kF32, 96 * 32, 32, 0.1f, Coding::kDither);
  p.mid_rise = true;  // dither keeps the mask anyway
  const Bytes x = ToTensor(Activations(p.n, 1), p.dtype);
  for (CodecId codec : kLossy) {
    Bytes stream = EncodeWith(codec, x, p);
    CHECK_EQ(static_cast<int>(stream[7]), static_cast<int>(kDither));
    stream[7] |= kMidRise;
    Bytes y(x.size());
    const Status s = DecodeStream({stream.data(), stream.size(), p.dtype, p.n},
                                  y.data(), SerialFor);
    CHECK(s.code == Code::kDamagedStream);
    CHECK_MSG(s.message.find("field flags") != std::string::npos, s.message);
  }
}

// dbeta is of dy alone; dgamma shows that the values are those decoded.
void TestBatchNorm() {
  for (int64_t channels : {64, 20}) {
    const EncodeParams p =
        ParamsOf(DType::kF32, 2000 * channels, channels, 0.5f, Coding::kDither);
    const Bytes x = ToTensor(Activations(p.n, 2), p.dtype);
    const Bytes stream = EncodeWith(CodecId::kPlane, x, p);
    const Bytes x_hat = DecodeWith(stream, p);
    const std::vector<float> ones(channels, 1.0f), zeros(channels, 0.0f);
    std::vector<float> dy(p.n), dx(p.n), dgamma(channels), dbeta(channels);
    // Sums up to zero, so that no mean of the values matters.
    for (int64_t i = 0; i < p.n; ++i) {
      dy[i] = i / channels % 2 == 0 ? 1.0f : -1.0f;
    }
    BatchNormChannels of;
    of.channels = channels;
    of.gamma = of.inv_std = ones.data();
    of.mean = zeros.data();
    CHECK(BatchNormGradient({stream.data(), stream.size(), p.dtype, p.n},
                            dy.data(), of,
                            {dx.data(), dgamma.data(), dbeta.data()}, SerialFor)
              .ok());
    std::vector<double> sums(channels, 0.0), sizes(channels, 0.0);
    for (int64_t i = 0; i < p.n; ++i) {
      const double v = LoadFloat(x_hat.data(), p.dtype, i) * dy[i];
      sums[i % channels] += v;
      sizes[i % channels] += std::fabs(v);
    }
    for (int64_t c = 0; c < channels; ++c) {
      CHECK(std::fabs(dgamma[c] - sums[c]) <= 1e-6 * sizes[c]);
    }
  }
}

struct ErrorStatistics {
  double mean;        // of the errors, over the bound
  double with_x;      // their correlation with the values
  double with_next;   // ... with the next value's error
  double with_below;  // ... with that of the next pixel
};

double Correlation(const std::vector<double>& a, const std::vector<double>& b,
                   size_t shift) {
  double sa = 0, sb = 0, saa = 0, sbb = 0, sab = 0;
  const size_t n = a.size() - shift;
  for (size_t i = 0; i < n; ++i) {
    const double u = a[i], v = b[i + shift];
    sa += u, sb += v, saa += u * u, sbb += v * v, sab += u * v;
  }
  const double m = static_cast<double>(n);
  return (sab / m - sa / m * (sb / m)) /
         std::sqrt((saa / m - sa / m * (sa / m)) *
                   (sbb / m - sb / m * (sb / m)));
}

ErrorStatistics Measure(CodecId codec, Coding coding) {
  const EncodeParams p = ParamsOf(DType::kF32, 1 << 20, 64, 1.0f, coding);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> v(p.n);
  for (float& f : v) f = std::fabs(normal(random)) + 1e-3f;
  const Bytes y = DecodeWith(EncodeWith(codec, ToTensor(v, p.dtype), p), p);
  std::vector<double> x(v.begin(), v.end()), error(p.n);
  double sum = 0;
  for (int64_t i = 0; i < p.n; ++i) {
    error[i] = LoadFloat(y.data(), p.dtype, i) - x[i];
    sum += error[i];
  }
  return {sum / static_cast<double>(p.n) / p.eb, Correlation(error, x, 0),
          Correlation(error, error, 1), Correlation(error, error, 64)};
}

// At a bound of one sigma, where plain rounding follows the data. Five standard
// deviations of what independent errors would show.
void TestUnbiased() {
  const double noise = 5 / std::sqrt(1 << 20);
  for (CodecId codec : kLossy) {
    const ErrorStatistics plain = Measure(codec, Coding::kPlain);
    CHECK(std::fabs(plain.mean) > 10 * noise);
    CHECK(std::fabs(plain.with_x) > 10 * noise);
    const ErrorStatistics dither = Measure(codec, Coding::kDither);
    CHECK(std::fabs(dither.mean) < noise);
    CHECK(std::fabs(dither.with_x) < noise);
    CHECK(std::fabs(dither.with_next) < noise);
    CHECK(std::fabs(dither.with_below) < noise);
    std::printf(
        "codec %d, mean error / bound and correlation with x: plain "
        "%.4f %.3f, dither %.5f %.5f (next %.5f, below %.5f)\n",
        static_cast<int>(codec), plain.mean, plain.with_x, dither.mean,
        dither.with_x, dither.with_next, dither.with_below);
  }
}

}  // namespace
}  // namespace comptrain

int main() {
  comptrain::TestSameBytesAndPromise();
  comptrain::TestLimits();
  comptrain::TestSmallestBound();
  comptrain::TestFlags();
  comptrain::TestBatchNorm();
  comptrain::TestUnbiased();
  return comptrain::FinishTests();
}
