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

// By type, by coding, then of 64 channels, of 20 and, where rans has runs of
// 16, of 48.
constexpr uint64_t kPlane[3][3][2] = {
    {{0x9abc075309636294, 0xc856f5d81f7ac5b9},
     {0x5c0c3dd302b8122a, 0x6a1017e4659332bd},
     {0xe85637e25492ca4a, 0xd492628f323ab877}},
    {{0xc3e5f6576de2660d, 0x5ee00c40fca17890},
     {0x9801875a90240c53, 0x76a45d567070b5b4},
     {0x59809a6e65154ce3, 0xc30d252f9ef41482}},
    {{0x706a8c5e2e2df34e, 0xe5d8ba87690c7556},
     {0x110fd35bf94def34, 0xe3b759283fe5119e},
     {0x171d62e27d04d688, 0x9d40c369653ba7e0}},
};
constexpr uint64_t kRans[3][3][3] = {
    {{0xdb7a34a185605ee3, 0x8b54b701a97ea998, 0xcd183f6a95096b8f},
     {0xd31dd60f5bc74022, 0x438b67c2b81f081a, 0x1687c87ce256cd31},
     {0x06afc97d2b0d6fe5, 0x09ae6a1effe84b27, 0xc27e27310c4f0706}},
    {{0x27004cc2b72cab57, 0x5f35cfe417943608, 0x09c8cd25141c49b7},
     {0x9f13aa0144672a32, 0xd4dc07fec0cc5256, 0xd8752e36030d1ec1},
     {0x71652fe6e4567651, 0x1cec79f5a2153013, 0xb0c5c899c7e21f9e}},
    {{0x018946f1ad9d6944, 0x7faed132bef853a7, 0x89597c4982afa11a},
     {0xa3f45e790dda7f3d, 0x7655564de4022509, 0x948d4bd313457784},
     {0x7f59ba4c987fa53a, 0x0b9bdef9b4fac920, 0x6cc3c69da235c9eb}},
};
constexpr uint64_t kZvc[3][1][2] = {
    {{0x4f350ade4bbe9b8d, 0x4a43d22b1fe42ff0}},
    {{0x7d4fa3392b3a6314, 0x7b1983bc5e49f15d}},
    {{0xf2cb9ecf9fa33385, 0x7b37c1518cfb2c7e}},
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
    const EncodeParams p =
        ParamsOf(dtype, n, channels, 0.11f, kCodings[coding]);
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
