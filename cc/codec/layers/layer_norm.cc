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

void LayerNorm(const NormRows& x, float epsilon, const LayerNormOut& out,
               const ParallelFor& parallel) {
  if (x.rows <= 0 || x.channels <= 0) return;
  const auto forward =
      LayerNormKernelsOf(Isa::kBest).forward[static_cast<int>(x.dtype)];
  const auto* in = static_cast<const uint8_t*>(x.data);
  auto* x_norm = static_cast<uint8_t*>(out.x_norm);
  const int64_t row_bytes = x.channels * ItemBytes(x.dtype);
  parallel(x.rows, 2 * x.channels, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(x.channels);
    forward({in + begin * row_bytes, x.dtype, end - begin, x.channels}, epsilon,
            {x_norm + begin * row_bytes, out.inv_std + begin}, scratch.data());
  });
}

void LayerNormAffine(const NormRows& x_norm, const LayerNormParams& params,
                     void* y, const ParallelFor& parallel) {
  if (x_norm.rows <= 0 || x_norm.channels <= 0) return;
  const auto affine =
      LayerNormKernelsOf(Isa::kBest).affine[static_cast<int>(x_norm.dtype)];
  const auto* in = static_cast<const uint8_t*>(x_norm.data);
  auto* out = static_cast<uint8_t*>(y);
  const int64_t row_bytes = x_norm.channels * ItemBytes(x_norm.dtype);
  parallel(x_norm.rows, x_norm.channels, [&](int64_t begin, int64_t end) {
    affine({in + begin * row_bytes, x_norm.dtype, end - begin, x_norm.channels},
           params, out + begin * row_bytes);
  });
}

void LayerNormGradient(const NormRows& x_norm, const LayerNormSaved& saved,
                       const void* dy, const NormGradients& out,
                       const ParallelFor& parallel) {
  if (x_norm.channels <= 0) return;
  std::fill_n(out.dgamma, x_norm.channels, 0.0f);
  std::fill_n(out.dbeta, x_norm.channels, 0.0f);
  if (x_norm.rows <= 0) return;
  const auto gradient =
      LayerNormKernelsOf(Isa::kBest).gradient[static_cast<int>(x_norm.dtype)];
  const auto* in = static_cast<const uint8_t*>(x_norm.data);
  const auto* g = static_cast<const uint8_t*>(dy);
  auto* dx = static_cast<uint8_t*>(out.dx);
  const int64_t row_bytes = x_norm.channels * ItemBytes(x_norm.dtype);
  const int64_t block_rows =
      std::max(kFewestRows, CeilDiv(x_norm.rows, kMostBlocks));
  const int64_t blocks = CeilDiv(x_norm.rows, block_rows);
  std::vector<float> sums(blocks * 2 * x_norm.channels);
  parallel(blocks, 4 * block_rows * x_norm.channels,
           [&](int64_t begin, int64_t end) {
             std::vector<float> scratch(2 * x_norm.channels);
             for (int64_t block = begin; block < end; ++block) {
               const int64_t row = block * block_rows;
               float* sum = &sums[block * 2 * x_norm.channels];
               gradient(
                   {in + row * row_bytes, x_norm.dtype,
                    std::min(block_rows, x_norm.rows - row), x_norm.channels},
                   {saved.gamma, saved.inv_std + row}, g + row * row_bytes,
                   {dx + row * row_bytes, sum, sum + x_norm.channels},
                   scratch.data());
             }
           });
  for (int64_t block = 0; block < blocks; ++block) {
    const float* sum = &sums[block * 2 * x_norm.channels];
    for (int64_t c = 0; c < x_norm.channels; ++c) {
      out.dgamma[c] += sum[c];
      out.dbeta[c] += sum[x_norm.channels + c];
    }
  }
}

}  // namespace comptrain
