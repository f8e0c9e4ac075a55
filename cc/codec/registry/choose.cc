#include "cc/codec/registry/choose.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "cc/codec/rans/layout.h"
#include "cc/codec/stream/quantizer.h"

namespace comptrain {
namespace {

constexpr int64_t kMaxBlocks = 16;
static_assert(SamplePlan::kBlockValues == 128 * rans::kLanes,
              "a block is a small chunk of rans");

// Bytes of the payload alone: sections of a fixed size weigh little in the
// whole. 0 when encoding failed.
size_t PayloadBytes(CodecId id, const void* x, const EncodeParams& params) {
  const std::unique_ptr<StreamEncoder> encoder = MakeEncoder(id, params);
  std::vector<uint8_t> scratch(encoder->scratch_bytes());
  if (!encoder->Encode(x, scratch.data(), scratch.size(), SerialFor).ok()) {
    return 0;
  }
  size_t fixed = sizeof(StreamHeader);
  if (id == CodecId::kRans) {
    fixed += sizeof(rans::TableHead) + rans::kFrequencyBytes;
  }
  return encoder->total_bytes() - fixed;
}

// The sample as if all channels had the scale of the stream: what its codes
// would be is what they are.
std::vector<uint8_t> WithoutScales(const void* sample, const SamplePlan& plan,
                                   const EncodeParams& params) {
  const Quantizer stream = QuantizerOf(params);
  std::vector<uint8_t> out(plan.n * sizeof(float));
  for (int64_t i = 0; i < plan.n; ++i) {
    const int64_t block = i / SamplePlan::kBlockValues;
    const int64_t c = (plan.First(block) % plan.row +
                       i % SamplePlan::kBlockValues % plan.unit) %
                      params.channels;
    const ChannelScales& scales = params.scales;
    const Quantizer q =
        OfChannel(stream, scales.exponents ? scales.exponents[c] : 0,
                  scales.centres ? scales.centres[c] : 0);
    const float x = LoadFloat(sample, params.dtype, i);
    const float v = (x * q.inv - static_cast<float>(q.centre)) * stream.step;
    std::memcpy(out.data() + i * sizeof v, &v, sizeof v);
  }
  return out;
}

}  // namespace

SamplePlan::SamplePlan(const EncodeParams& p) {
  if (p.channels <= 0 || p.n < kMinChosenValues) return;
  const rans::Geometry g(p.n, p.channels);
  row = g.row;
  unit = g.unit;
  groups = g.groups;
  whole = p.n / row / (kBlockValues / unit);
  blocks = std::min({kMaxBlocks, p.n / (16 * kBlockValues), whole * groups});
  n = blocks * kBlockValues;
}

std::vector<uint8_t> SampleOf(const void* x, DType dtype,
                              const SamplePlan& plan) {
  const int64_t item = static_cast<int64_t>(ItemBytes(dtype));
  const int64_t block_bytes = SamplePlan::kBlockValues * item;
  std::vector<uint8_t> sample(plan.n * item);
  for (int64_t i = 0; i < plan.blocks; ++i) {
    CopyRows(static_cast<const uint8_t*>(x) + plan.First(i) * item,
             plan.row * item, sample.data() + i * block_bytes, plan.unit * item,
             block_bytes, plan.unit * item);
  }
  return sample;
}

CodecId ChooseBySample(const void* sample, const SamplePlan& plan,
                       const EncodeParams& params) {
  if (plan.n == 0) return CodecId::kPlane;
  EncodeParams p = params;
  const rans::Geometry g(params.n, params.channels);
  p.n = plan.n;
  p.width = g.Stride(params.width, params.channels);
  p.channels = g.unit;
  p.counted_from = 0;  // as in the whole tensor
  p.scales = {};
  std::vector<uint8_t> alike;
  const void* coded_sample = sample;
  const size_t lossless = PayloadBytes(CodecId::kZvc, sample, p);
  if (params.scales.exponents || params.scales.centres) {
    alike = WithoutScales(sample, plan, params);
    coded_sample = alike.data();
    p.dtype = DType::kF32;
  }
  const size_t plane = PayloadBytes(CodecId::kPlane, coded_sample, p);
  if (lossless <= plane) return CodecId::kZvc;
  const double coded =
      static_cast<double>(PayloadBytes(CodecId::kRans, coded_sample, p));
  return coded < (1 - kWorthCoding) * static_cast<double>(plane)
             ? CodecId::kRans
             : CodecId::kPlane;
}

CodecId ChooseCodec(const void* x, const EncodeParams& params) {
  const SamplePlan plan(params);
  return ChooseBySample(SampleOf(x, params.dtype, plan).data(), plan, params);
}

}  // namespace comptrain
