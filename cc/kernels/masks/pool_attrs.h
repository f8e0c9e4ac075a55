// Attributes that MaxPool and its gradient share, for every device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/codec/masks/pool.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comptrain {

struct PoolAttrs {
  std::vector<int32_t> ksize, strides;
  bool same = false;

  absl::Status Read(tensorflow::OpKernelConstruction* ctx) {
    std::string padding;
    absl::Status s = ctx->GetAttr("ksize", &ksize);
    if (s.ok()) s = ctx->GetAttr("strides", &strides);
    if (s.ok()) s = ctx->GetAttr("padding", &padding);
    if (!s.ok()) return s;
    same = padding == "SAME";
    if (ksize.size() > 3 || ksize.size() != strides.size()) {
      return absl::InvalidArgumentError(
          "ksize and strides need one entry for each of 1 to 3 spatial "
          "dimensions");
    }
    int64_t window = 1;
    for (size_t i = 0; i < ksize.size(); ++i) {
      if (ksize[i] < 1 || strides[i] < 1) {
        return absl::InvalidArgumentError("ksize and strides must be positive");
      }
      window *= ksize[i];
      if (window > (1 << 16)) {
        return absl::InvalidArgumentError(
            "the pooling window has more than 65536 positions");
      }
    }
    return absl::OkStatus();
  }

  absl::Status Shape(const tensorflow::TensorShape& in, PoolShape* p) const {
    const int rank = ksize.size();
    if (in.dims() != rank + 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "x must be [batch, ", rank, " spatial dimensions, channels], got ",
          in.DebugString()));
    }
    p->batch = in.dim_size(0);
    p->channels = in.dim_size(rank + 1);
    for (int i = 0; i < rank; ++i) {
      const int d = 3 - rank + i;
      const int64_t size = in.dim_size(i + 1);
      p->in_size[d] = size;
      p->window[d] = ksize[i];
      p->stride[d] = strides[i];
      const int64_t covered = same ? size : size - ksize[i] + 1;
      if (covered < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("the pooling window (", ksize[i],
                         ") is larger than the input (", size, ")"));
      }
      p->out_size[d] = (covered + strides[i] - 1) / strides[i];
      if (same) {
        const int64_t needed = (p->out_size[d] - 1) * strides[i] + ksize[i];
        p->pad_before[d] = std::max<int64_t>(0, needed - size) / 2;
      }
    }
    return absl::OkStatus();
  }

  tensorflow::TensorShape Output(const PoolShape& p) const {
    tensorflow::TensorShape y({p.batch});
    for (int d = 3 - static_cast<int>(ksize.size()); d < 3; ++d) {
      y.AddDim(p.out_size[d]);
    }
    y.AddDim(p.channels);
    return y;
  }
};

}  // namespace comptrain
