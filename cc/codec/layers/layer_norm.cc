#include "cc/codec/layers/layer_norm.h"

#include <algorithm>
#include <vector>

#include "cc/codec/common/bits.h"
#include "cc/codec/common/isa.h"
#include "cc/codec/layers/layer_norm_kernels.h"

namespace comptrain {
namespace {

// A block of rows has sums of its own: neither so few rows that the sums
// outweigh them, nor more blocks than this.
constexpr int64_t kFewestRows = 32, kMostBlocks = 64;

}  // namespace

constexpr LayerNormKernels kLayerNormKernelsScalar = LayerNormTable();

void LayerNorm(const NormRows& x, const LayerNormParams& params,
               const LayerNormOut& out, const ParallelFor& parallel) {
  if (x.rows <= 0 || x.channels <= 0) return;
  const auto forward =
      LayerNormKernelsOf(Isa::kBest).forward[static_cast<int>(x.dtype)];
  const auto* in = static_cast<const uint8_t*>(x.data);
  auto* y = static_cast<uint8_t*>(out.y);
  const int64_t row_bytes = x.channels * ItemBytes(x.dtype);
  parallel(x.rows, 2 * x.channels, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(2 * x.channels);
    forward({in + begin * row_bytes, x.dtype, end - begin, x.channels}, params,
            {y + begin * row_bytes, out.inv_std + begin}, scratch.data());
  });
}

void LayerNormGradient(const NormRows& x, const LayerNormSaved& saved,
                       const void* dy, const NormGradients& out,
                       const ParallelFor& parallel) {
  if (x.channels <= 0) return;
  std::fill_n(out.dgamma, x.channels, 0.0f);
  std::fill_n(out.dbeta, x.channels, 0.0f);
  if (x.rows <= 0) return;
  const auto gradient =
      LayerNormKernelsOf(Isa::kBest).gradient[static_cast<int>(x.dtype)];
  const auto* in = static_cast<const uint8_t*>(x.data);
  const auto* g = static_cast<const uint8_t*>(dy);
  auto* dx = static_cast<uint8_t*>(out.dx);
  const int64_t row_bytes = x.channels * ItemBytes(x.dtype);
  const int64_t block_rows =
      std::max(kFewestRows, CeilDiv(x.rows, kMostBlocks));
  const int64_t blocks = CeilDiv(x.rows, block_rows);
  std::vector<float> sums(blocks * 2 * x.channels);
  parallel(blocks, 4 * block_rows * x.channels,
           [&](int64_t begin, int64_t end) {
             std::vector<float> scratch(2 * x.channels);
             for (int64_t block = begin; block < end; ++block) {
               const int64_t row = block * block_rows;
               float* sum = &sums[block * 2 * x.channels];
               gradient({in + row * row_bytes, x.dtype,
                         std::min(block_rows, x.rows - row), x.channels},
                        {saved.gamma, saved.inv_std + row}, g + row * row_bytes,
                        {dx + row * row_bytes, sum, sum + x.channels},
                        scratch.data());
             }
           });
  for (int64_t block = 0; block < blocks; ++block) {
    const float* sum = &sums[block * 2 * x.channels];
    for (int64_t c = 0; c < x.channels; ++c) {
      out.dgamma[c] += sum[c];
      out.dbeta[c] += sum[x.channels + c];
    }
  }
}

}  // namespace comptrain
