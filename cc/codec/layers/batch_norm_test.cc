// The gradient from the stream against sums in double over PlaneDecode's x_hat.
#include "cc/codec/layers/batch_norm.h"

#include <cmath>
#include <memory>

#include "cc/codec/testing/codecs.h"
#include "cc/codec/testing/data.h"

namespace comptrain {
namespace {

struct Case {
  EncodeParams params;
  Bytes stream, x_hat, dy;
  std::vector<float> gamma, mean, inv_std;

  BatchNormChannels channels() const {
    return {params.channels, gamma.data(), mean.data(), inv_std.data()};
  }
};

struct Result {
  Bytes dx;
  std::vector<float> dgamma, dbeta;

  bool operator==(const Result& o) const {
    return dx == o.dx && Same(dgamma, o.dgamma) && Same(dbeta, o.dbeta);
  }
  static bool Same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() &&
           std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
};

// Channels of unlike means and spreads; one tile far too wide for codes, and
// one in 40 of zeros, so that there are raw and empty tiles.
Case MakeCase(DType dtype, int64_t pixels, int64_t channels, bool mid_rise) {
  Case c;
  const int64_t n = pixels * channels;
  c.params = Params(dtype, n, channels, 0.1f, mid_rise);
  std::mt19937 random(static_cast<uint32_t>(n + channels));
  std::normal_distribution<float> normal;
  std::vector<float> x(n), dy(n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t k = i % channels, block = i / 1024;
    x[i] = (1 + k % 3) * normal(random) + static_cast<float>(k % 7 - 3);
    if (block % 40 == 2) x[i] = 0;
    if (block % 40 == 3) x[i] *= 3000;
    dy[i] = normal(random) + 0.25f;
  }
  const Bytes tensor = ToTensor(x, dtype);
  c.stream = EncodeWith(CodecId::kPlane, tensor, c.params);
  c.x_hat = DecodeWith(c.stream, c.params);
  c.dy = ToTensor(dy, dtype);
  std::vector<double> sum(channels), square(channels);
  for (int64_t i = 0; i < n; ++i) {
    const double v = LoadFloat(tensor.data(), dtype, i);
    sum[i % channels] += v;
    square[i % channels] += v * v;
  }
  for (int64_t k = 0; k < channels; ++k) {
    const double mean = sum[k] / pixels;
    const double variance = std::max(0.0, square[k] / pixels - mean * mean);
    c.gamma.push_back(1 + 0.5f * normal(random));
    c.mean.push_back(static_cast<float>(mean));
    c.inv_std.push_back(static_cast<float>(1 / std::sqrt(variance + 1e-3)));
  }
  return c;
}

Status Call(const Case& c, const Bytes& stream, const void* dy, Result* r,
            const ParallelFor& parallel, Isa isa) {
  r->dgamma.assign(c.params.channels, NAN);
  r->dbeta.assign(c.params.channels, NAN);
  return BatchNormGradient(
      {stream.data(), stream.size(), c.params.dtype, c.params.n}, dy,
      c.channels(), {r->dx.data(), r->dgamma.data(), r->dbeta.data()}, parallel,
      isa);
}

Result Run(const Case& c, const ParallelFor& parallel, Isa isa) {
  Result r;
  r.dx.assign(c.dy.size(), 0xcd);
  const Status s = Call(c, c.stream, c.dy.data(), &r, parallel, isa);
  CHECK_MSG(s.ok(), s.message);
  return r;
}

// From x_hat as plane decodes it.
Result RunOf(const Case& c, const ParallelFor& parallel, Isa isa) {
  Result r;
  r.dx.assign(c.dy.size(), 0xcd);
  r.dgamma.assign(c.params.channels, NAN);
  r.dbeta.assign(c.params.channels, NAN);
  const Status s = BatchNormGradientOf(
      {c.x_hat.data(), c.params.dtype, c.params.n}, c.dy.data(), c.channels(),
      {r.dx.data(), r.dgamma.data(), r.dbeta.data()}, parallel, isa);
  CHECK_MSG(s.ok(), s.message);
  return r;
}

Result RunInPlace(const Case& c, Isa isa) {
  Result r;
  r.dx = c.dy;
  const Status s = Call(c, c.stream, r.dx.data(), &r, SerialFor, isa);
  CHECK_MSG(s.ok(), s.message);
  return r;
}

// Values of r that are further from the formula than rounding explains.
int64_t Mistakes(const Case& c, const Result& r) {
  const int64_t channels = c.params.channels, n = c.params.n;
  const double m = static_cast<double>(n / channels);
  const DType dtype = c.params.dtype;
  std::vector<double> dbeta(channels), dgamma(channels), beta_size(channels),
      gamma_size(channels), rounded(channels), mean(channels), off(channels);
  for (int64_t i = 0; i < n; ++i) {
    const float x = LoadFloat(c.x_hat.data(), dtype, i);
    mean[i % channels] += x / m;
    off[i % channels] += HalfUlp(x, dtype) * c.inv_std[i % channels] / m;
  }
  const auto norm = [&](int64_t i) {
    const int64_t k = i % channels;
    return (static_cast<double>(LoadFloat(c.x_hat.data(), dtype, i)) -
            mean[k]) *
           c.inv_std[k];
  };
  // The largest of what is added up for it.
  const auto norm_size = [&](int64_t i) {
    const int64_t k = i % channels;
    return std::fabs(norm(i)) + std::fabs(mean[k] - c.mean[k]) * c.inv_std[k];
  };
  // How far x_hat, rounded to dtype, may be from what the gradient reads.
  const auto rounding = [&](int64_t i) {
    return HalfUlp(LoadFloat(c.x_hat.data(), dtype, i), dtype) *
           c.inv_std[i % channels];
  };
  for (int64_t i = 0; i < n; ++i) {
    const double g = LoadFloat(c.dy.data(), dtype, i), x = norm(i);
    rounded[i % channels] += std::fabs(g) * (rounding(i) + off[i % channels]);
    dbeta[i % channels] += g;
    dgamma[i % channels] += g * x;
    beta_size[i % channels] += std::fabs(g);
    gamma_size[i % channels] += std::fabs(g) * norm_size(i);
  }
  int64_t bad = 0;
  for (int64_t k = 0; k < channels; ++k) {
    bad += !(std::fabs(r.dbeta[k] - dbeta[k]) <= 1e-6 * beta_size[k]);
    bad += !(std::fabs(r.dgamma[k] - dgamma[k]) <=
             1e-6 * gamma_size[k] + rounded[k]);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t k = i % channels;
    const double g = LoadFloat(c.dy.data(), dtype, i);
    const double factor = static_cast<double>(c.gamma[k]) * c.inv_std[k];
    const double term = norm(i) * dgamma[k] / m;
    const double expected = factor * (g - dbeta[k] / m - term);
    const double size = std::fabs(factor) * (std::fabs(g) + beta_size[k] / m +
                                             norm_size(i) * gamma_size[k] / m);
    const float got = LoadFloat(r.dx.data(), dtype, i);
    const double allowed =
        2e-6 * size +
        std::fabs(factor) / m *
            ((std::fabs(norm(i)) + rounding(i)) * rounded[k] +
             (rounding(i) + off[k]) * gamma_size[k]) +
        1.01 * HalfUlp(static_cast<float>(std::fabs(expected) + 2e-6 * size),
                       dtype);
    bad += !(std::fabs(got - expected) <= allowed);
  }
  return bad;
}

void TestGradient(DType dtype, int64_t pixels, int64_t channels,
                  bool mid_rise) {
  const Case c = MakeCase(dtype, pixels, channels, mid_rise);
  const std::string which = "dtype " + std::to_string(static_cast<int>(dtype)) +
                            " pixels " + std::to_string(pixels) + " channels " +
                            std::to_string(channels);
  const Result first = Run(c, SerialFor, Isa::kScalar);
  CHECK_MSG(Mistakes(c, first) == 0, which);
  const Result of = RunOf(c, SerialFor, Isa::kScalar);
  CHECK_MSG(Mistakes(c, of) == 0, which);
  for (const Isa isa : AvailableIsas()) {
    CHECK_MSG(RunInPlace(c, isa) == first, which);
    for (const ParallelFor& parallel : ParallelVariants()) {
      CHECK_MSG(Run(c, parallel, isa) == first, which);
      CHECK_MSG(RunOf(c, parallel, isa) == of, which);
    }
  }
}

void TestEmpty() {
  Case c = MakeCase(DType::kF32, 0, 1, false);
  c.params.channels = 5;
  c.gamma.resize(5);
  c.mean.resize(5);
  c.inv_std.resize(5);
  for (const Result& r :
       {Run(c, SerialFor, Isa::kBest), RunOf(c, SerialFor, Isa::kBest)}) {
    for (int k = 0; k < 5; ++k) CHECK(r.dgamma[k] == 0 && r.dbeta[k] == 0);
  }
}

// One bad value spoils its own channel only.
void TestNonFinite() {
  for (const int64_t channels : {32, 24}) {
    Case c = MakeCase(DType::kF32, 700, channels, false);
    Bytes x = c.x_hat;
    StoreFloat(NAN, DType::kF32, x.data(), 300 * channels + 5);
    c.stream = EncodeWith(CodecId::kPlane, x, c.params);
    const Result r = Run(c, SerialFor, Isa::kBest);
    for (int64_t k = 0; k < channels; ++k) {
      CHECK_EQ(std::isnan(r.dgamma[k]), k == 5);
      CHECK(std::isfinite(r.dbeta[k]));
    }
    for (int64_t i = 0; i < c.params.n; ++i) {
      const bool spoiled = i % channels == 5;
      if (std::isnan(LoadFloat(r.dx.data(), DType::kF32, i)) != spoiled) {
        CHECK_EQ(i, -1);
      }
    }
  }
}

// From a stream of a fixed rate: the formula of what that decodes to.
void TestFixedRate(DType dtype, const std::vector<int64_t>& dims) {
  const int64_t channels = dims.back();
  Case c = MakeCase(dtype, ElementsOf(dims) / channels, channels, false);
  const FixedRateTensor of = {{5, false}, dims, dtype};
  std::vector<uint8_t> stream(of.coding.StreamBytes(dims));
  std::vector<float> state(kStateFields);
  BoundRule bound;
  bound.relative_bound = 0.1f;
  FixedRateEncode(of, {c.x_hat.data(), state.data(), bound, false},
                  {stream.data(), state.data()}, SerialFor);
  const FixedRateStream in = {of, stream.data(), state.data()};
  FixedRateDecode(in, c.x_hat.data(), SerialFor);
  const auto run = [&](const void* dy, Result* r, const ParallelFor& parallel,
                       Isa isa) {
    r->dgamma.assign(channels, NAN);
    r->dbeta.assign(channels, NAN);
    BatchNormGradientOfFixedRate(
        in, dy, c.channels(), {r->dx.data(), r->dgamma.data(), r->dbeta.data()},
        parallel, isa);
  };
  Result first;
  first.dx.resize(c.dy.size());
  run(c.dy.data(), &first, SerialFor, Isa::kScalar);
  CHECK_EQ(Mistakes(c, first), 0);
  for (const Isa isa : AvailableIsas()) {
    for (const ParallelFor& parallel : ParallelVariants()) {
      Result r;
      r.dx = c.dy;  // in place
      run(r.dx.data(), &r, parallel, isa);
      CHECK(r.dx == first.dx);
      CHECK(r.dgamma == first.dgamma && r.dbeta == first.dbeta);
    }
  }
}

void TestArguments() {
  Case c = MakeCase(DType::kF32, 64, 32, false);
  const Case other = MakeCase(DType::kF32, 128, 16, false);
  Result r;
  r.dx.resize(c.dy.size());
  const Status s =
      Call(c, other.stream, c.dy.data(), &r, SerialFor, Isa::kBest);
  CHECK(s.code == Code::kInvalidArgument);
  CHECK_MSG(s.message.find("got 16") != std::string::npos, s.message);
  CHECK(Call(c, c.stream, nullptr, &r, SerialFor, Isa::kBest).code ==
        Code::kInvalidArgument);
  const auto of = [&](const void* x_hat, int64_t n) {
    return BatchNormGradientOf(
               {x_hat, DType::kF32, n}, c.dy.data(), c.channels(),
               {r.dx.data(), r.dgamma.data(), r.dbeta.data()}, SerialFor)
        .code;
  };
  CHECK(of(c.x_hat.data(), 64 * 32 - 1) == Code::kInvalidArgument);
  CHECK(of(nullptr, 64 * 32) == Code::kInvalidArgument);
  c.params.dtype = DType::kBF16;
  CHECK(Call(c, c.stream, c.dy.data(), &r, SerialFor, Isa::kBest).code ==
        Code::kDamagedStream);
}

// An error exactly where PlaneDecode has one, in blocks of exactly the sizes
// promised, so that a sanitizer sees every stray access.
void TestDamage() {
  std::mt19937 random(21);
  int64_t differing = 0, rejected = 0;
  for (const DType dtype : kAllDTypes) {
    for (const int64_t channels : {32, 96, 24, 7}) {
      const Case c = MakeCase(dtype, 5000 / channels, channels, true);
      for (int i = 0; i < 2000; ++i) {
        Bytes damaged = c.stream;
        for (int h = 0; h < 3; ++h) {
          const size_t reach = random() % 2 ? damaged.size() : 128;
          damaged[random() % reach] ^= static_cast<uint8_t>(1u << random() % 8);
        }
        if (i % 4 == 0) damaged.resize(random() % damaged.size());
        std::unique_ptr<uint8_t[]> out(new uint8_t[c.dy.size()]);
        const bool decodes =
            PlaneDecode({damaged.data(), damaged.size(), dtype, c.params.n},
                        out.get(), SerialFor)
                .ok();
        // Channels are the caller's business, not damage that decoding meets.
        if (decodes && std::memcmp(&damaged[16], &c.stream[16], 4) != 0)
          continue;
        rejected += !decodes;
        Result r;
        r.dx.resize(c.dy.size());
        for (const Isa isa : AvailableIsas()) {
          differing +=
              Call(c, damaged, c.dy.data(), &r, SerialFor, isa).ok() != decodes;
        }
      }
    }
  }
  CHECK_EQ(differing, 0);
  CHECK(rejected > 0);
}

}  // namespace
}  // namespace comptrain

int main() {
  using namespace comptrain;
  for (const DType dtype : kAllDTypes) {
    for (const int64_t channels :
         {1, 3, 16, 24, 32, 40, 64, 144, 160, 1000, 1056, 2048}) {
      for (const int64_t pixels : {1, 2, 31, 32, 33, 100, 1025}) {
        if (pixels * channels > 300000) continue;
        TestGradient(dtype, pixels, channels, pixels % 2 != 0);
      }
    }
  }
  for (const int64_t channels : {3, 32, 64}) {  // more ranges than one block
    TestGradient(DType::kF32, 2500000 / channels, channels, false);
  }
  for (const DType dtype : kAllDTypes) {
    TestFixedRate(dtype, {4, 9, 33, 24});
    TestFixedRate(dtype, {300, 7});
    TestFixedRate(dtype, {3, 40, 40, 64});
  }
  TestEmpty();
  TestNonFinite();
  TestArguments();
  TestDamage();
  return FinishTests();
}
