#include <utility>

#include "cc/codec/fixed_rate/rows.h"
#include "cc/codec/fixed_rate/scale.h"

namespace comptrain {
namespace {

constexpr int kScales = 256;
// Of a unit of work, in cycles.
constexpr int64_t kCost = int64_t{FixedRateCoding::kPacked} * kStretch;

std::vector<float> CentresOf(const FixedRateStream& stream) {
  const FixedRateTensor& of = stream.of;
  std::vector<float> centres;
  if (!of.coding.HasCentres(of.dims)) return centres;
  const uint8_t* at = stream.data + of.coding.WordBytes(of.dims) +
                      of.coding.ScaleBytes(of.dims);
  for (int64_t c = 0; c < of.dims.back(); ++c, at += 2) {
    uint16_t half;
    std::memcpy(&half, at, sizeof half);
    centres.push_back(BF16ToFloat(half));
  }
  return centres;
}

}  // namespace

std::vector<float> StepsOfScales(float step) {
  std::vector<float> steps(kScales);
  for (int k = 0; k < kScales; ++k) {
    steps[k] = ScaleOf(static_cast<uint8_t>(k)) * step;
  }
  return steps;
}

std::vector<float> InverseStepsOfScales(float step) {
  std::vector<float> inverse = StepsOfScales(step);
  inverse[0] = 0;  // all values are their centre
  for (int k = 1; k < kScales; ++k) inverse[k] = 1 / inverse[k];
  return inverse;
}

FixedRateDecoder::FixedRateDecoder(const FixedRateStream& stream, Isa isa)
    : coding_(stream.of.coding),
      kernels_(FixedRateKernelsOf(isa)),
      rows_(WordLayout(stream.of.dims)),
      words_(reinterpret_cast<const uint32_t*>(stream.data)),
      seed_(stream.state == nullptr ? 0 : SeedOf(stream.state)),
      factors_(stream.of,
               stream.data + stream.of.coding.WordBytes(stream.of.dims),
               StepsOfScales(stream.state == nullptr
                                 ? 0
                                 : StepOfScale1(stream.state[kBoundUsed])),
               CentresOf(stream), kernels_),
      row_scales_(
          stream.of.dims.back(),
          stream.of.coding.row_scales
              ? reinterpret_cast<const int8_t*>(
                    stream.data + stream.of.coding.RowsAt(stream.of.dims))
              : nullptr) {}

void FixedRateDecode(const FixedRateStream& stream, void* x_hat,
                     const ParallelFor& parallel, Isa isa) {
  const FixedRateDecoder decoder(stream, isa);
  const DType dtype = stream.of.dtype;
  const auto item = static_cast<int64_t>(ItemBytes(dtype));
  auto* const out = static_cast<uint8_t*>(x_hat);
  parallel(decoder.units(), kCost, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      decoder.ForValues(unit, [&](int64_t first, int64_t n, const float* x) {
        decoder.kernels().narrow(x, n, dtype, out + first * item);
      });
    }
  });
}

void FixedRateMaskGradient(const FixedRateStream& stream,
                           const GradientTerms& dy, void* dx,
                           const ParallelFor& parallel, Isa isa) {
  const FixedRateDecoder decoder(stream, isa);
  const FixedRateKernels& kernels = decoder.kernels();
  const DType dtype = stream.of.dtype;
  const auto item = static_cast<int64_t>(ItemBytes(dtype));
  const auto* const in = static_cast<const uint8_t*>(dy.first);
  const auto* const more = static_cast<const uint8_t*>(dy.second);
  auto* const out = static_cast<uint8_t*>(dx);
  parallel(decoder.units(), kCost, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      decoder.ForCodes(unit,
                       [&](int64_t first, int64_t n, const uint32_t* codes) {
                         const int64_t at = first * item;
                         if (more == nullptr) {
                           kernels.select(codes, n, item, in + at, out + at);
                           return;
                         }
                         alignas(64) float sum[kStretch], other[kStretch];
                         kernels.widen(in + at, dtype, n, sum);
                         kernels.widen(more + at, dtype, n, other);
                         for (int64_t i = 0; i < n; ++i) sum[i] += other[i];
                         kernels.narrow(sum, n, dtype, out + at);
                         kernels.select(codes, n, item, out + at, out + at);
                       });
    }
  });
}

}  // namespace comptrain
