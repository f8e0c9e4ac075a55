// Formulas that compilers make vectors of, for avx2.cc and avx512.cc.
#pragma once

#include "cc/codec/common/vector.h"
#include "cc/codec/layers/activation_kernels.h"
#include "cc/codec/layers/layer_norm_kernels.h"
#include "cc/codec/layers/softmax_kernels.h"

namespace comptrain {

constexpr ActivationKernels COMPTRAIN_NAME(kActivationKernels) =
    ActivationTable();
constexpr LayerNormKernels COMPTRAIN_NAME(kLayerNormKernels) = LayerNormTable();
constexpr SoftmaxKernels COMPTRAIN_NAME(kSoftmaxKernels) = SoftmaxTable();

}  // namespace comptrain
