// Layer normalization over the last dimension.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {

REGISTER_OP("Comptrain>LayerNorm")
    .Input("x: T")
    .Output("x_norm: T")
    .Output("inv_std: float")
    .Attr("T: {float, bfloat16, half}")
    .Attr("epsilon: float")
    .SetShapeFn([](shape_inference::InferenceContext* c) {
      shape_inference::ShapeHandle x, rows;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &x));
      TF_RETURN_IF_ERROR(c->Subshape(x, 0, -1, &rows));
      c->set_output(0, x);
      c->set_output(1, rows);
      return absl::OkStatus();
    })
    .Doc(
        "Over the last dimension: inv_std = 1 / sqrt(variance + epsilon), "
        "x_norm = (x - mean) inv_std. LayerNormAffine alone reads it: what "
        "that "
        "hands back for x_norm is the gradient of x.");

REGISTER_OP("Comptrain>LayerNormAffine")
    .Input("x_norm: T")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("inv_std: float")
    .Output("y: T")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn(shape_inference::UnchangedShape)
    .Doc(
        "y = gamma x_norm + beta. The gradient reads inv_std, of the LayerNorm "
        "before.");

REGISTER_OP("Comptrain>LayerNormGrad")
    .Input("x_norm: T")
    .Input("dy: T")
    .Input("gamma: float")
    .Input("inv_std: float")
    .Output("dx: T")
    .Output("dgamma: float")
    .Output("dbeta: float")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn([](shape_inference::InferenceContext* c) {
      TF_RETURN_IF_ERROR(shape_inference::MergeBothInputsShapeFn(c));
      c->set_output(1, c->input(2));
      c->set_output(2, c->input(2));
      return absl::OkStatus();
    })
    .Doc(
        "Gradient of Comptrain>LayerNorm and Comptrain>LayerNormAffine; dx in "
        "the memory of an input where nothing else reads it.");

}  // namespace tensorflow
