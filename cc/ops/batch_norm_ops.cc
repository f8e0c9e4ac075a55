// Batch normalization from a compressed input.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {

using shape_inference::DimensionHandle;
using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

REGISTER_OP("Comptrain>BatchNormGrad")
    .Input("stream: uint8")
    .Input("dy: T")
    .Input("gamma: float")
    .Input("mean: float")
    .Input("inv_std: float")
    .Input("state: float")
    .Output("dx: T")
    .Output("dgamma: float")
    .Output("dbeta: float")
    .Attr("T: {float, bfloat16, half}")
    .Attr("codec: {'plane', 'rans', 'zvc', 'auto'} = 'plane'")
    .Attr("mid_rise: bool = false")
    .Attr("bits: int = 8")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle dy, vector;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), 1, &dy));
      DimensionHandle channels =
          c->RankKnown(dy) ? c->Dim(dy, -1) : c->UnknownDim();
      for (int i = 2; i < 5; ++i) {
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &vector));
        TF_RETURN_IF_ERROR(c->Merge(channels, c->Dim(vector, 0), &channels));
      }
      c->set_output(0, c->input(1));
      c->set_output(1, c->Vector(channels));
      c->set_output(2, c->Vector(channels));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Gradient of batch normalization, in training mode, from the stream of its input.

With x_norm = (x_hat - mean) * inv_std and m elements a channel:
  dbeta = sum dy, dgamma = sum dy * x_norm,
  dx = gamma * inv_std * (dy - dbeta / m - x_norm * dgamma / m).
On a CPU plane's stream is decoded piece by piece in cache, and x_hat is never
a tensor. dx takes the memory of dy where nothing else reads it.

stream: Comptrain>Compress of the input, which has the shape of dy.
dy: the incoming gradient, channels last.
gamma: [channels].
mean: [channels], of the batch.
inv_std: [channels], 1 / sqrt(population variance of the batch + epsilon).
state: XLA: new_state of Comptrain>Compress. Executor: not read, any shape.
codec: as Comptrain>Compress had it; XLA: 'plane'.
mid_rise, bits: XLA: as Comptrain>Compress had them.
)doc");

}  // namespace tensorflow
