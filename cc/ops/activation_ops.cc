// Ops for activation functions, elementwise.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tensorflow {

REGISTER_OP("Comptrain>Gelu")
    .Input("x: T")
    .Output("y: T")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn(shape_inference::UnchangedShape)
    .Doc("y = x Phi(x), Phi being the normal distribution.");

REGISTER_OP("Comptrain>GeluGrad")
    .Input("x: T")
    .Input("dy: T")
    .Output("dx: T")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn(shape_inference::MergeBothInputsShapeFn)
    .Doc(
        "dx = dy (Phi(x) + x Phi'(x)), in the memory of an input where nothing "
        "else reads it.");

REGISTER_OP("Comptrain>Silu")
    .Input("x: T")
    .Output("y: T")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn(shape_inference::UnchangedShape)
    .Doc("y = x / (1 + exp(-x)).");

REGISTER_OP("Comptrain>SiluGrad")
    .Input("x: T")
    .Input("dy: T")
    .Output("dx: T")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn(shape_inference::MergeBothInputsShapeFn)
    .Doc(
        "dx = dy s (1 + x (1 - s)) with s = 1 / (1 + exp(-x)), in the memory "
        "of an input where nothing else reads it.");

}  // namespace tensorflow
