// Damaged streams of every codec end in an error or in some tensor, never in a
// crash. It shows most when all of cc/codec is built with
// -fsanitize=address,undefined -fno-sanitize-recover=all.
// COMPTRAIN_MUTATIONS=n: how many damaged streams a codec, 100,000 without it.
#include <cstdlib>

#include "cc/codec/testing/codecs.h"

namespace comptrain {
namespace {

struct Sample {
  EncodeParams params;
  Bytes stream;
};

void Add(CodecId codec, const EncodeParams& p, const std::vector<float>& values,
         std::vector<Sample>* samples) {
  samples->push_back({p, EncodeWith(codec, ToTensor(values, p.dtype), p)});
}

// Narrow, wide, delta, raw and empty tiles, whole and cut off.
std::vector<Sample> PlaneSamples() {
  std::vector<Sample> samples;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (DType dtype : kAllDTypes) {
    for (int64_t channels : {32, 20}) {
      const int64_t n = 5 * 1024 + 3 * channels - (5 * 1024 % channels);
      std::vector<float> v(n);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t tile = i / 1024;
        const float g = normal(random);
        v[i] = tile == 0   ? std::max(0.0f, g)
               : tile == 1 ? 1000 * g
               : tile == 2 ? 5 + 0.1f * g
               : tile == 3 ? 0.0f
                           : g;
      }
      v[4 * 1024 + 9] = NAN;
      Add(CodecId::kPlane, Params(dtype, n, channels, 0.1f, true), v, &samples);
      EncodeParams scaled = ParamsOf(dtype, n, channels, 0.1f, Coding::kDither);
      scaled.scales = SomeScales();
      scaled.seed = 12345;
      Add(CodecId::kPlane, scaled, v, &samples);
    }
  }
  return samples;
}

// Lanes of every mode, chunks coded, raw and zero, whole and cut off; at last
// one with counted frequencies.
std::vector<Sample> RansSamples() {
  std::vector<Sample> samples;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  const auto add = [&](DType dtype, int64_t n, int64_t channels) {
    std::vector<float> v(n - n % channels);
    float walk = 0;
    for (size_t i = 0; i < v.size(); ++i) {
      const float g = normal(random);
      walk += 0.02f * g;
      v[i] = i / 4096 == 1 ? 0
             : i % 4 == 0  ? std::max(0.0f, g)
             : i % 4 == 1  ? 1000 * g
             : i % 4 == 2  ? 5 + walk
                           : g;
    }
    v[2 * 4096 + 9] = NAN;
    EncodeParams p =
        Params(dtype, static_cast<int64_t>(v.size()), channels, 0.1f, true, 16);
    Add(CodecId::kRans, p, v, &samples);
    if (n > 20000) return;
    p.mid_rise = false;
    p.dither = true;
    p.scales = SomeScales();
    p.seed = 12345;
    Add(CodecId::kRans, p, v, &samples);
  };
  for (DType dtype : kAllDTypes) {
    for (int64_t channels : {32, 48, 20}) add(dtype, 2 * 4096 + 300, channels);
  }
  add(DType::kF32, 70000, 32);
  return samples;
}

// Of every density.
std::vector<Sample> ZvcSamples() {
  std::vector<Sample> samples;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (DType dtype : kAllDTypes) {
    for (int part = 0; part < 5; ++part) {
      std::vector<float> v(1000 + part * 700);
      for (float& f : v) {
        f = static_cast<int>(random() % 4) < part ? normal(random) : 0;
      }
      Add(CodecId::kZvc,
          Params(dtype, static_cast<int64_t>(v.size()), 1, 0.1f, true), v,
          &samples);
    }
  }
  return samples;
}

struct Subject {
  CodecId id;
  const char* name;
  std::vector<Sample> samples;
  const char* step;  // what its format calls the header's second-last field
  size_t head;       // bytes of header, directory and table
};

// Copies into a block of exactly that size, so that a sanitizer sees every
// byte read too many.
Status TryDecode(const uint8_t* stream, size_t bytes, const EncodeParams& p,
                 Isa isa, bool mask, Bytes* y) {
  std::unique_ptr<uint8_t[]> exact(new uint8_t[bytes]);
  std::copy(stream, stream + bytes, exact.get());
  y->assign(p.n * ItemBytes(p.dtype), 0);
  y->shrink_to_fit();
  if (mask) {
    return StreamMaskGradient({exact.get(), bytes, p.dtype, p.n}, y->data(),
                              y->data(), SerialFor, isa);
  }
  return DecodeStream({exact.get(), bytes, p.dtype, p.n}, y->data(), SerialFor,
                      isa);
}

Status TryDecode(const Bytes& stream, const EncodeParams& p,
                 Isa isa = Isa::kBest) {
  Bytes y;
  return TryDecode(stream.data(), stream.size(), p, isa, false, &y);
}

// Where rans' last chunk begins: cut off there, it is one of zeros.
size_t LastChunk(const Bytes& stream) {
  StreamHeader h;
  std::memcpy(&h, stream.data(), sizeof h);
  uint32_t start;
  std::memcpy(&start, stream.data() + h.directory_offset + 4 * (h.n_chunks - 1),
              sizeof start);
  return h.payload_offset + 4 * size_t{start};
}

void TestTruncation(const Subject& codec) {
  for (const Sample& s : codec.samples) {
    if (s.stream.size() > 20000) continue;
    for (Isa isa : AvailableIsas()) {
      for (size_t length = 0; length < s.stream.size(); ++length) {
        Bytes cut(s.stream.begin(), s.stream.begin() + length);
        const Status st = TryDecode(cut, s.params, isa);
        CHECK_MSG(st.code == Code::kDamagedStream && !st.message.empty(),
                  "length " + std::to_string(length));
        // A header that agrees with the length: the payload does not.
        const uint64_t total = length;
        if (s.params.scales.exponents != nullptr) continue;  // others are read
        if (length >= 64) std::memcpy(cut.data() + 32, &total, sizeof total);
        CHECK(!TryDecode(cut, s.params, isa).ok() ||
              (codec.id == CodecId::kRans && length == LastChunk(s.stream)));
      }
    }
  }
}

void TestExtraBytes(const Subject& codec) {
  Bytes longer = codec.samples[0].stream;
  longer.push_back(0);
  CHECK(!TryDecode(longer, codec.samples[0].params).ok());
}

// Every instruction set agrees on what is an error, and on the values.
void TestMutations(const Subject& codec) {
  const char* wanted = std::getenv("COMPTRAIN_MUTATIONS");
  const long count = wanted != nullptr ? std::atol(wanted) : 100000;
  std::mt19937 random(12);
  long rejected = 0, differing = 0;
  for (long i = 0; i < count; ++i) {
    // The last sample may be a large one.
    const size_t last = codec.samples.size() - 1;
    const Sample& s =
        codec.samples[random() % 50 == 0 ? last : random() % last];
    Bytes damaged = s.stream;
    const int hits = 1 + static_cast<int>(random() % 4);
    for (int h = 0; h < hits; ++h) {
      // Half of the damage where it hurts most.
      const size_t reach =
          std::min(damaged.size(), random() % 2 ? damaged.size() : codec.head);
      damaged[random() % reach] ^= static_cast<uint8_t>(1u << random() % 8);
    }
    const bool mask = random() % 4 == 0;
    Bytes reference, y;
    const auto decode = [&](Isa isa, Bytes* out) {
      return TryDecode(damaged.data(), damaged.size(), s.params, isa, mask, out)
          .ok();
    };
    const bool ok = decode(Isa::kScalar, &reference);
    rejected += !ok;
    for (Isa isa : AvailableIsas()) {
      differing += decode(isa, &y) != ok || (ok && y != reference);
    }
  }
  CHECK_EQ(differing, 0);
  CHECK(rejected > 0 && rejected < count);
  std::printf("%s: %ld of %ld mutations rejected\n", codec.name, rejected,
              count);
}

// Each field of the header is checked, and the message names it.
void TestHeaderFields(const Subject& codec) {
  const Sample& s = codec.samples[0];
  const struct {
    size_t offset;
    const char* field;
  } fields[] = {{0, "magic"},
                {4, "version"},
                {5, "codec"},
                {6, "dtype"},
                {7, "flags"},
                {8, "n"},
                {16, "channels"},
                {20, "log2_pixels"},
                {24, codec.step},
                {28, "inv"},
                {32, "total_bytes"},
                {40, "n_chunks"},
                {44, "directory_offset"},
                {48, "table_offset"},
                {52, "payload_offset"},
                {56, "seed"},
                {60, "padding"},
                {63, "padding"}};
  for (const auto& f : fields) {
    Bytes damaged = s.stream;
    damaged[f.offset] ^= 0x40;
    const Status st = TryDecode(damaged, s.params);
    CHECK(st.code == Code::kDamagedStream);
    CHECK_MSG(st.message.find(f.field) != std::string::npos, st.message);
  }
  // A length or type other than the caller's.
  EncodeParams p = s.params;
  p.n -= 1;
  CHECK(!TryDecode(s.stream, p).ok());
  p = s.params;
  p.dtype = DType::kBF16;
  CHECK(!TryDecode(s.stream, p).ok());
}

// Without mid-rise or dither the codes of plane and rans carry no mask.
void TestMaskNeedsMidRise(const Subject& codec) {
  if (IsLossless(codec.id)) return;
  const EncodeParams p = Params(DType::kF32, 64, 32, 0.1f, false);
  const Bytes stream = EncodeWith(codec.id, Bytes(256), p);
  Bytes y;
  CHECK(TryDecode(stream.data(), stream.size(), p, Isa::kBest, true, &y).code ==
        Code::kInvalidArgument);
}

}  // namespace
}  // namespace comptrain

int main() {
  using comptrain::CodecId;
  const comptrain::Subject subjects[] = {
      {CodecId::kPlane, "plane", comptrain::PlaneSamples(), "inv", 128},
      {CodecId::kRans, "rans", comptrain::RansSamples(), "inv", 256},
      {CodecId::kZvc, "zvc", comptrain::ZvcSamples(), "step", 112},
  };
  for (const auto& codec : subjects) {
    comptrain::TestHeaderFields(codec);
    comptrain::TestTruncation(codec);
    comptrain::TestExtraBytes(codec);
    comptrain::TestMaskNeedsMidRise(codec);
    comptrain::TestMutations(codec);
  }
  return comptrain::FinishTests();
}
