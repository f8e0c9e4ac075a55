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
    {CodecId::kPlane, kF32, Coding::kPlain, 0x286674edd5d743d9,
     0x0aa540cee5f95404},
    {CodecId::kPlane, kF32, Coding::kMidRise, 0x35396063e1d14eb7,
     0x5e25662e0ee52c6c},
    {CodecId::kPlane, kF32, Coding::kDither, 0xa2a266887ae1099b,
     0x7fdfa71d89d58206},
    {CodecId::kPlane, kBF16, Coding::kPlain, 0xa36a2ab212abb570,
     0x6a6a6d3fcc2d33a5},
    {CodecId::kPlane, kBF16, Coding::kMidRise, 0xaec3c6a9496ac9b6,
     0x4954ddaf2101fe5d},
    {CodecId::kPlane, kBF16, Coding::kDither, 0x56b0d2be60a1eeea,
     0x27eada26aacabc43},
    {CodecId::kPlane, kF16, Coding::kPlain, 0x68f04cc67a6039cb,
     0x54d8fb7276f372df},
    {CodecId::kPlane, kF16, Coding::kMidRise, 0x59a6fbbefd859411,
     0xa7028b6d423c8ddb},
    {CodecId::kPlane, kF16, Coding::kDither, 0x811753aa4e6cc811,
     0x465fdd588eefd22d},
    {CodecId::kRans, kF32, Coding::kPlain, 0x095e9207750d56c1,
     0x773f337347d99cb0},
    {CodecId::kRans, kF32, Coding::kMidRise, 0x48caa930be9a63a1,
     0x6d19f1fec7074872},
    {CodecId::kRans, kF32, Coding::kDither, 0xa811a638ebea9061,
     0xbcd44de9c4d80626},
    {CodecId::kRans, kBF16, Coding::kPlain, 0x25f4eb2aef1c2d65,
     0x6006526dece53a54},
    {CodecId::kRans, kBF16, Coding::kMidRise, 0xd760fb22d2c539b1,
     0x72931cb59a9c068a},
    {CodecId::kRans, kBF16, Coding::kDither, 0xdba272114736c86d,
     0x40a05b1b93f6b352},
    {CodecId::kRans, kF16, Coding::kPlain, 0x520ef59f58841a32,
     0xf94610784f1aaf1b},
    {CodecId::kRans, kF16, Coding::kMidRise, 0xdc06f654c4b23da6,
     0xd1f6cd693db77fb1},
    {CodecId::kRans, kF16, Coding::kDither, 0x5a2ab4c4a6a8f896,
     0x11a27be33b05d0c5},
    {CodecId::kZvc, kF32, Coding::kPlain, 0xed88128edfffa260,
     0xb2d935564941e27d},
    {CodecId::kZvc, kBF16, Coding::kPlain, 0xe5b66f6bb16e37e1,
     0x11ec799bba3db488},
    {CodecId::kZvc, kF16, Coding::kPlain, 0xe0515bf357ecab88,
     0x93fb28c5b2945e17},
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
