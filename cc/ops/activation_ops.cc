// Ops for activation functions, elementwise, and of the softmax over rows.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tensorflow {

// An activation function of x, and its gradient: dx in the memory of an input
// where nothing else reads that.
#define COMPTRAIN_ACTIVATION_OPS(NAME, Y, DX)              \
  REGISTER_OP("Comptrain>" NAME)                           \
      .Input("x: T")                                       \
      .Output("y: T")                                      \
      .Attr("T: {float, bfloat16, half}")                  \
      .SetShapeFn(shape_inference::UnchangedShape)         \
      .Doc("y = " Y);                                      \
  REGISTER_OP("Comptrain>" NAME "Grad")                    \
      .Input("x: T")                                       \
      .Input("dy: T")                                      \
      .Output("dx: T")                                     \
      .Attr("T: {float, bfloat16, half}")                  \
      .SetShapeFn(shape_inference::MergeBothInputsShapeFn) \
      .Doc("dx = " DX);

COMPTRAIN_ACTIVATION_OPS("Gelu", "x Phi(x), Phi being the normal distribution.",
                         "dy (Phi(x) + x Phi'(x)).")
COMPTRAIN_ACTIVATION_OPS("Silu", "x / (1 + exp(-x)).",
                         "dy s (1 + x (1 - s)) with s = 1 / (1 + exp(-x)).")
COMPTRAIN_ACTIVATION_OPS(
    "TanhGelu", "x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).",
    "dy y'(x).")

REGISTER_OP("Comptrain>SoftmaxGrad")
    .Input("y: T")
    .Input("dy: T")
    .Output("dx: T")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn(shape_inference::MergeBothInputsShapeFn)
    .Doc(
        "dx = (dy - sum(dy y)) y over the last dimension, in the memory of an "
        "input where nothing else reads that.");

}  // namespace tensorflow
