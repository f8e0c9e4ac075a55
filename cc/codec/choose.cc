#include "cc/codec/choose.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "cc/codec/half.h"
#include "cc/codec/rans_layout.h"

namespace comptrain {
namespace {

// Of a block: a small chunk of codec B.
constexpr int64_t kBlockValues = 128 * rans::kLanes;
constexpr int64_t kMaxBlocks = 16;

// Blocks of pixels x unit channels, one below the other, from places spread
// over x.
std::vector<uint8_t> Sample(const void* x, const EncodeParams& p,
                            int64_t* values) {
  const int64_t item = static_cast<int64_t>(ItemBytes(p.dtype));
  const rans::Geometry g(p.n, p.channels);
  const int64_t pixels = kBlockValues / g.unit;
  const int64_t whole = p.n / g.row / pixels;  // blocks below each other
  const int64_t blocks =
      std::min({kMaxBlocks, p.n / (16 * kBlockValues), whole * g.groups});
  *values = blocks * kBlockValues;
  std::vector<uint8_t> sample(*values * item);
  uint8_t* to = sample.data();
  for (int64_t i = 0; i < blocks; ++i) {
    // The middle of each of `blocks` equal parts, another group each time.
    const int64_t down = (2 * i + 1) * whole / (2 * blocks);
    const int64_t across = (2 * i + 1) * g.groups / (2 * blocks);
    const int64_t group = (across + i) % g.groups;
    const uint8_t* from = static_cast<const uint8_t*>(x) +
                          (down * pixels * g.row + group * g.unit) * item;
    rans::CopyRows(from, g.row * item, to, g.unit * item, kBlockValues * item,
                   g.unit * item);
    to += kBlockValues * item;
  }
  return sample;
}

// Bytes of the payload alone: sections of a fixed size weigh little in the
// whole. 0 when encoding failed.
size_t PayloadBytes(CodecId id, const std::vector<uint8_t>& x,
                    const EncodeParams& params) {
  const std::unique_ptr<StreamEncoder> encoder = MakeEncoder(id, params);
  std::vector<uint8_t> scratch(encoder->scratch_bytes());
  if (!encoder->Encode(x.data(), scratch.data(), scratch.size(), SerialFor)
           .ok()) {
    return 0;
  }
  size_t fixed = sizeof(StreamHeader);
  if (id == CodecId::kRans) {
    fixed += sizeof(rans::TableHead) + rans::kFrequencyBytes;
  }
  return encoder->total_bytes() - fixed;
}

}  // namespace

CodecId ChooseCodec(const void* x, const EncodeParams& params) {
  if (x == nullptr || params.channels <= 0 || params.n < kMinChosenValues) {
    return CodecId::kPlane;
  }
  EncodeParams p = params;
  const std::vector<uint8_t> sample = Sample(x, params, &p.n);
  if (p.n == 0) return CodecId::kPlane;
  const rans::Geometry g(params.n, params.channels);
  p.width = g.Stride(params.width, params.channels);
  p.channels = g.unit;
  p.counted_from = 0;  // as in the whole tensor
  const size_t plane = PayloadBytes(CodecId::kPlane, sample, p);
  if (PayloadBytes(CodecId::kZvc, sample, p) <= plane) return CodecId::kZvc;
  const double coded =
      static_cast<double>(PayloadBytes(CodecId::kRans, sample, p));
  return coded < (1 - kWorthCoding) * static_cast<double>(plane)
             ? CodecId::kRans
             : CodecId::kPlane;
}

}  // namespace comptrain
