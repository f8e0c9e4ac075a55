// Checksums of the streams of every codec, type, flag and geometry. Streams of
// today decode tomorrow: a change here is a change of the format, and needs
// another kStreamVersion. The data is exact arithmetic, so the same with every
// compiler.
#include "cc/codec/codec_test_util.h"

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

struct Golden {
  CodecId codec;
  DType dtype;
  Coding coding;
  uint64_t grouped, flat;  // 64 channels, 20 channels
};

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;

constexpr Golden kGolden[] = {
    {CodecId::kPlane, kF32, Coding::kPlain, 0xabe59fd4f77f340a,
     0x641a5114bb1a61cf},
    {CodecId::kPlane, kF32, Coding::kMidRise, 0xf004d7aa43af5d90,
     0x357c9fc39ec83a9f},
    {CodecId::kPlane, kF32, Coding::kDither, 0xb41bdff56c6f4e58,
     0x1523f2c5f209ae45},
    {CodecId::kPlane, kBF16, Coding::kPlain, 0x3bcfee6abb60870b,
     0x4f3941d8d047b77e},
    {CodecId::kPlane, kBF16, Coding::kMidRise, 0x90521c159958cca1,
     0x3b077276ddbcab96},
    {CodecId::kPlane, kBF16, Coding::kDither, 0x97f585afcddb8c31,
     0x528d67818dfb6400},
    {CodecId::kPlane, kF16, Coding::kPlain, 0x0381359d94f2d7f8,
     0xa65e5e8f4e117d6c},
    {CodecId::kPlane, kF16, Coding::kMidRise, 0x3c794116409642b6,
     0x2062424698068708},
    {CodecId::kPlane, kF16, Coding::kDither, 0x1c9b8f41557b9b1a,
     0xc6654f37eddfb8c6},
    {CodecId::kRans, kF32, Coding::kPlain, 0x2185c5ab40869b7a,
     0xac906b7aca5a55e4},
    {CodecId::kRans, kF32, Coding::kMidRise, 0x102cda86eb02901a,
     0xa3be2a60d0ac2b78},
    {CodecId::kRans, kF32, Coding::kDither, 0xb7f8fc7d6708759e,
     0x2328c2ec2eba48ca},
    {CodecId::kRans, kBF16, Coding::kPlain, 0x3558c7206ed7342e,
     0xf2e5053ed389097c},
    {CodecId::kRans, kBF16, Coding::kMidRise, 0x2e33cb18d57eebf2,
     0x09be86986bc514e4},
    {CodecId::kRans, kBF16, Coding::kDither, 0x90d3fe0331e9c352,
     0x9b6455698b33c316},
    {CodecId::kRans, kF16, Coding::kPlain, 0x352e0c7534819ddd,
     0x2603f3b624cc983b},
    {CodecId::kRans, kF16, Coding::kMidRise, 0x6ec0d7e8f5f3aab9,
     0xe63791a84c51f31b},
    {CodecId::kRans, kF16, Coding::kDither, 0xb8524d082cc00bcd,
     0x744728dfc46a4091},
    {CodecId::kZvc, kF32, Coding::kPlain, 0x447c5d05553b15d3,
     0x51275e3af5776b02},
    {CodecId::kZvc, kBF16, Coding::kPlain, 0x517233ab2f144122,
     0xd13d594ee87480cf},
    {CodecId::kZvc, kF16, Coding::kPlain, 0x9b081814ddc5bffb,
     0xca2318e30c5ffe9c},
};

void Check(const Golden& g, int64_t n, int64_t channels, uint64_t expected) {
  const EncodeParams p = ParamsOf(g.dtype, n, channels, 0.11f, g.coding);
  const uint64_t found = Fnv(EncodeWith(g.codec, Values(g.dtype, n), p));
  char text[120];
  std::snprintf(text, sizeof text,
                "codec %d, dtype %d, coding %d, channels %d: 0x%016llx",
                static_cast<int>(g.codec), static_cast<int>(g.dtype),
                static_cast<int>(g.coding), static_cast<int>(channels),
                static_cast<unsigned long long>(found));
  CHECK_MSG(found == expected, text);
}

}  // namespace
}  // namespace comptrain

int main() {
  for (const comptrain::Golden& g : comptrain::kGolden) {
    comptrain::Check(g, 1088 * 64, 64, g.grouped);
    comptrain::Check(g, 3481 * 20, 20, g.flat);
  }
  return comptrain::FinishTests();
}
