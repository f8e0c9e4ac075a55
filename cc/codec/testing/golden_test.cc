// Checksums of the streams of every codec, type, flag and geometry. Streams of
// today decode tomorrow: a change here is a change of the format, and needs
// another kStreamVersion. The data is exact arithmetic, so the same with every
// compiler.
#include "cc/codec/testing/codecs.h"

namespace comptrain {
namespace {

uint64_t Fnv(const Bytes& bytes) {
  uint64_t h = 0xcbf29ce484222325;
  for (uint8_t b : bytes) h = (h ^ b) * 0x100000001b3;
  return h;
}

Bytes Values(DType dtype, int64_t n) {
  std::mt19937 random(8);
  std::vector<float> v(n);
  for (int64_t i = 0; i < n; ++i) {
    const int scale = 1 << i % 64 % 9;
    const int u = static_cast<int>(random() % 257) - 128;
    v[i] = static_cast<float>(u * scale) * 0x1p-7f;
    if (i % 3 == 0 || (i > n / 2 && v[i] < 0)) v[i] = 0;
  }
  v[60000] = NAN;
  return ToTensor(v, dtype);
}

// By type, by coding (the last: dither with scales of channels, from another
// seed), then of 64 channels, of 20 and, where rans has runs of 16, of 48.
constexpr int kScaled = 3;
constexpr uint64_t kPlane[3][4][2] = {
    {{0xd3053173b0b49d0b, 0x15fe3cf43b54cc9e},
     {0xaef1b141dd921221, 0xeeb69b9743e0d642},
     {0x86594e831c3d0365, 0x28de4924e24c6770},
     {0xf639e4bafe1c392f, 0xaa48d8516df01ccc}},
    {{0x519d454c640f6b1a, 0x02a1698415559947},
     {0x6648e3320e7e0368, 0x545635bf33f2bb73},
     {0x20fc94864f3eebf4, 0xf7a4ef51dbc6efad},
     {0x8d94da0bba761f34, 0x9dd9291bcf51f32b}},
    {{0xf14a23de43cb1249, 0xe1837ae7d3ae7ae1},
     {0x8197985d6591935f, 0x5ca0da7e41e660f1},
     {0xba73b65339191947, 0x00f9b1b12819b347},
     {0x055ebdf93a2e26cb, 0x6f898c1d03e6e660}},
};
constexpr uint64_t kRans[3][4][3] = {
    {{0x97323a68e2648dbc, 0x4ab90b7e675e884b, 0xa76eaee8274e5160},
     {0x7ba2913938bd0a59, 0xb249013116f64231, 0x9ddd563722cd5b7e},
     {0xe3c5f4390c13857e, 0xcd91f8c5b4819dc0, 0x8588278ce93a9e4d},
     {0x73af2bfa5cf39868, 0x0bf2d595667b117e, 0x19c7fb6bb14f6139}},
    {{0x0bf2afbfb56f49b0, 0x49af702318aeea8b, 0x4adfc0f1f1d3f210},
     {0x67844913a324bc61, 0x99591e043cadb03d, 0x2d62ff27c9ae1b16},
     {0x9e9d84d940db9c1a, 0xed6bc71a58820c6c, 0xaed7a974241a21e5},
     {0x5bbfabfe7f14a597, 0xc08489ddc3351bc4, 0x2f23a339aa408d87}},
    {{0x13944c1f6e95dddf, 0x414d26c7c506eb4c, 0x5b179824415c065d},
     {0xb4b24e0954094552, 0xfc4082a4ad3f9212, 0x3f2b856b0e454903},
     {0x102e5179a42696a5, 0x29460ced501423df, 0x0911ba7a9d8b9de8},
     {0xe3a0c910a75731d6, 0xe6268cb8614ec073, 0xc0a00b781d331973}},
};
constexpr uint64_t kZvc[3][1][2] = {
    {{0x4d0865aef02d480a, 0x453bc4f991495a5b}},
    {{0x982217994d0aef6b, 0xcd5f1cecc195eafe}},
    {{0x3e91d465cbc6b462, 0xce75fd092742e9e9}},
};

constexpr struct {
  int64_t n, channels;
} kShapes[] = {{1088 * 64, 64}, {3481 * 20, 20}, {1453 * 48, 48}};

template <int kCodingCount, int kShapeCount>
void Check(CodecId codec,
           const uint64_t (&golden)[3][kCodingCount][kShapeCount]) {
  for (int i = 0; i < 3 * kCodingCount * kShapeCount; ++i) {
    const auto [n, channels] = kShapes[i % kShapeCount];
    const int coding = i / kShapeCount % kCodingCount;
    const DType dtype = kAllDTypes[i / kShapeCount / kCodingCount];
    const bool scaled = coding == kScaled;
    EncodeParams p = ParamsOf(dtype, n, channels, 0.11f,
                              scaled ? Coding::kDither : kCodings[coding]);
    if (scaled) {
      p.scales = SomeScales();
      p.seed = 0x12345678;
    }
    const uint64_t found = Fnv(EncodeWith(codec, Values(dtype, n), p));
    char text[120];
    std::snprintf(text, sizeof text,
                  "codec %d, dtype %d, coding %d, channels %d: 0x%016llx",
                  static_cast<int>(codec), static_cast<int>(dtype), coding,
                  static_cast<int>(channels),
                  static_cast<unsigned long long>(found));
    CHECK_MSG(found == golden[static_cast<int>(dtype)][coding][i % kShapeCount],
              text);
  }
}

}  // namespace
}  // namespace comptrain

int main() {
  using namespace comptrain;
  Check(CodecId::kPlane, kPlane);
  Check(CodecId::kRans, kRans);
  Check(CodecId::kZvc, kZvc);
  return FinishTests();
}
