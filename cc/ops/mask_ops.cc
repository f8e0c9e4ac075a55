// Ops that hold bits instead of activations: masks and pooling positions.
#include <algorithm>

#include "cc/codec/masks/pool.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {

using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

REGISTER_OP("Comptrain>Bitmask")
    .Input("x: T")
    .Output("output: T")
    .Output("bits: uint8")
    .Attr("T: {float, bfloat16, half}")
    .Attr("lower: float = 0.0")
    .Attr("upper: float = inf")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(0));
      c->set_output(1, c->UnknownShape());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Packs lower < x < upper into one bit per element and passes x through.

bits: [ceil(n / 8)]; element i is bit i % 8 of byte i / 8. Under XLA of another
  static shape; read by ops compiled as this one was.
)doc");

REGISTER_OP("Comptrain>BitmaskGrad")
    .Input("bits: uint8")
    .Input("dy: T")
    .Output("dx: T")
    .Attr("T: {float, bfloat16, half}")
    .Attr("on: float = 1.0")
    .Attr("off: float = 0.0")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    })
    .Doc("dx = dy * (on where the bit is set, else off).");

REGISTER_OP("Comptrain>Dropout")
    .Input("x: T")
    .Input("key: uint64")
    .Input("counter: uint64")
    .Output("y: T")
    .Output("bits: uint8")
    .Attr("T: {float, bfloat16, half}")
    .Attr("rate: float")
    .Attr("scale: float")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(0));
      c->set_output(1, c->UnknownShape());
      return absl::OkStatus();
    })
    .Doc(R"doc(
y = x * scale where a uniform random number is at least the rate, else 0; and
which elements those are, one bit per element as in Comptrain>Bitmask.

key, counter: [1] and [2], what StatelessRandomGetKeyCounter makes of a seed: the
  numbers are those that StatelessRandomUniformV2 draws from them on a CPU.
)doc");

REGISTER_OP("Comptrain>MaxPool")
    .Input("x: T")
    .Output("y: T")
    .Output("index: uint8")
    .Attr("T: {float, bfloat16, half}")
    .Attr("ksize: list(int) >= 1")
    .Attr("strides: list(int) >= 1")
    .Attr("padding: {'VALID', 'SAME'} = 'VALID'")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<int32_t> ksize, strides;
      std::string padding;
      TF_RETURN_IF_ERROR(c->GetAttr("ksize", &ksize));
      TF_RETURN_IF_ERROR(c->GetAttr("strides", &strides));
      TF_RETURN_IF_ERROR(c->GetAttr("padding", &padding));
      ShapeHandle x;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), ksize.size() + 2, &x));
      if (ksize.size() > 3 || strides.size() != ksize.size()) {
        return absl::InvalidArgumentError(
            "ksize and strides need one entry for each of 1 to 3 spatial "
            "dimensions");
      }
      ShapeHandle y = x;
      for (size_t i = 0; i < ksize.size(); ++i) {
        shape_inference::DimensionHandle size = c->Dim(x, i + 1), out;
        if (ksize[i] < 1 || strides[i] < 1) {
          return absl::InvalidArgumentError(
              "ksize and strides must be positive");
        }
        if (c->ValueKnown(size)) {
          const int64_t in = c->Value(size);
          const int64_t covered = padding == "SAME" ? in : in - ksize[i] + 1;
          if (covered < 0) {
            return absl::InvalidArgumentError(
                "the pooling window is larger than the input");
          }
          out = c->MakeDim((covered + strides[i] - 1) / strides[i]);
        } else {
          out = c->UnknownDim();
        }
        TF_RETURN_IF_ERROR(c->ReplaceDim(y, i + 1, out, &y));
      }
      c->set_output(0, y);
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      if (c->FullyDefined(y)) {  // in a branch XLA has no other sizes
        comptrain::PoolShape window;
        std::copy(ksize.begin(), ksize.end(), window.window);
        const int64_t bits = comptrain::PoolIndexBits(window);
        const int64_t elements = c->Value(c->NumElements(y));
        c->set_output(1, c->Vector((elements * bits + 7) / 8));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Max pooling, channels last, that keeps each maximum's position in its window.

index: positions packed in 1, 2, 4, 8 or 16 bits by window size; what the
  gradient needs in place of input and output. Under XLA of a static shape, for
  windows of at most 64 positions.
)doc");

REGISTER_OP("Comptrain>MaxPoolGrad")
    .Input("index: uint8")
    .Input("dy: T")
    .Input("input_shape: int32")
    .Output("dx: T")
    .Attr("T: {float, bfloat16, half}")
    .Attr("ksize: list(int) >= 1")
    .Attr("strides: list(int) >= 1")
    .Attr("padding: {'VALID', 'SAME'} = 'VALID'")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle out;
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(2, &out));
      c->set_output(0, out);
      return absl::OkStatus();
    })
    .Doc("Gradient of Comptrain>MaxPool with respect to x.");

}  // namespace tensorflow
