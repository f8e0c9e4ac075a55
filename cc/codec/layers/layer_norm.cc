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

void LayerNorm(const void* x, DType dtype, int64_t rows, int64_t channels,
               const float* gamma, const float* beta, float epsilon, void* y,
               const ParallelFor& parallel) {
  if (rows <= 0 || channels <= 0) return;
  const auto forward =
      LayerNormKernelsOf(Isa::kBest).forward[static_cast<int>(dtype)];
  const auto* in = static_cast<const uint8_t*>(x);
  auto* out = static_cast<uint8_t*>(y);
  const int64_t row_bytes = channels * ItemBytes(dtype);
  parallel(rows, 2 * channels, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(2 * channels);
    forward(in + begin * row_bytes, end - begin, channels, gamma, beta, epsilon,
            out + begin * row_bytes, scratch.data());
  });
}

void LayerNormGradient(const void* x, DType dtype, int64_t rows,
                       int64_t channels, const float* gamma, float epsilon,
                       const void* dy, void* dx, float* dgamma, float* dbeta,
                       const ParallelFor& parallel) {
  if (channels <= 0) return;
  std::fill_n(dgamma, channels, 0.0f);
  std::fill_n(dbeta, channels, 0.0f);
  if (rows <= 0) return;
  const auto gradient =
      LayerNormKernelsOf(Isa::kBest).gradient[static_cast<int>(dtype)];
  const auto* in = static_cast<const uint8_t*>(x);
  const auto* g = static_cast<const uint8_t*>(dy);
  auto* out = static_cast<uint8_t*>(dx);
  const int64_t row_bytes = channels * ItemBytes(dtype);
  const int64_t block_rows = std::max(kFewestRows, CeilDiv(rows, kMostBlocks));
  const int64_t blocks = CeilDiv(rows, block_rows);
  std::vector<float> sums(blocks * 2 * channels);
  parallel(blocks, 4 * block_rows * channels, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(2 * channels);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = block * block_rows;
      float* sum = &sums[block * 2 * channels];
      gradient(in + row * row_bytes, std::min(block_rows, rows - row), channels,
               gamma, epsilon, g + row * row_bytes, out + row * row_bytes, sum,
               sum + channels, scratch.data());
    }
  });
  for (int64_t block = 0; block < blocks; ++block) {
    const float* sum = &sums[block * 2 * channels];
    for (int64_t c = 0; c < channels; ++c) {
      dgamma[c] += sum[c];
      dbeta[c] += sum[channels + c];
    }
  }
}

}  // namespace comptrain
