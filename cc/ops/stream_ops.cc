// Ops that hold an activation as an error-bounded stream between the forward
// and the backward pass.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {

using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

REGISTER_OP("Comptrain>Compress")
    .Input("x: T")
    .Input("state: float")
    .Output("output: T")
    .Output("stream: uint8")
    .Output("new_state: float")
    .Attr("T: {float, bfloat16, half}")
    .Attr("codec: {'plane', 'rans', 'zvc', 'auto'} = 'plane'")
    .Attr("relative_bound: float = 0.1")
    .Attr("relative_to: {'sigma', 'range', 'nothing'} = 'sigma'")
    .Attr("decay: float = 0.9")
    .Attr("mid_rise: bool = false")
    .Attr("dither: bool = false")
    .Attr("bits: int = 8")
    .Attr("group_statistics: bool = true")
    .Attr("row_scales: bool = false")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle state;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &state));
      c->set_output(0, c->input(0));
      c->set_output(1, c->UnknownShape());
      c->set_output(2, state);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Encodes x with an error bound, or without loss, and passes x through.

Consumers of x read `output` (the same buffer), so that the forward pass cannot
run ahead of compression.

Executor and XLA encode differently. The executor's streams have as many bytes
as the values need and hold the bound strictly. XLA needs static shapes: every
value takes `bits` bits, and each group of 32 values has a scale: the bound of a
group whose values are too large for their codes is larger. A stream is read by
ops compiled as its writer was.

x: activation, channels last.
state: [10]: bound set by the user (absolute; 0: relative), bound used, running
  sigma (0: none yet), non-zero ratio, sigma of this tensor (root of the mean
  variance of its channels), stream bytes, range of this tensor (0 unless
  relative_to is 'range'); under XLA the share of groups with a larger bound;
  the root of the mean square of the bounds of all channels, under XLA of all
  groups of the last tensor with group_statistics; tensors so far.
output: x.
stream: encoded bytes: a vector whose length is known only after encoding, or,
  under XLA, of static shape.
new_state: state after this tensor.
codec: name of the stream format; 'zvc' is lossless, its bound is 0; 'auto':
  chosen for this tensor from a sample of it.
relative_bound: bound = relative_bound * running sigma where none is set.
relative_to: 'sigma': each channel's bound, a set one too, is that times a power
  of two: the ratio of its scale to that of all channels. 'range': bound =
  relative_bound * (max - min) of this tensor. 'nothing': absolute.
decay: of the running sigma, per step. Of one tensor no more than ten times the
  running value counts.
mid_rise: keep the zero mask of x exactly, so that the stream also serves the
  gradient of the ReLU that made x. Under XLA codes are unsigned then: x >= 0.
dither: make the error independent of the data, by subtractive dither; keeps the
  zero mask too. Not under XLA.
bits: of one value under XLA, from 2 to 8.
group_statistics: XLA: whether new_state has what the groups' bounds of this
  tensor come to, or what state has.
row_scales: rows, all of the last dimension, that are some four times longer or
  shorter than the others have a bound in proportion: a byte a row, on the
  executor where there are such. Not on the executor of a GPU, nor of what
  Comptrain>BatchNormGrad reads.
)doc");

REGISTER_OP("Comptrain>Decompress")
    .Input("stream: uint8")
    .Input("shape: Tshape")
    .Input("gate: G")
    .Input("state: float")
    .Output("x_hat: T")
    .Attr("T: {float, bfloat16, half}")
    .Attr("G: type")
    .Attr("Tshape: {int32, int64} = DT_INT32")
    .Attr("codec: {'plane', 'rans', 'zvc', 'auto'} = 'plane'")
    .Attr("mid_rise: bool = false")
    .Attr("bits: int = 8")
    .Attr("row_scales: bool = false")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle out;
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(1, &out));
      c->set_output(0, out);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Decodes a stream of Comptrain>Compress.

gate is not read: as an input it makes the op wait for the incoming gradient, so
that nothing is decompressed before the backward pass needs it.

stream: bytes of Comptrain>Compress.
shape: of the result; its element count must be the stream's.
gate: the incoming gradient.
state: XLA: new_state of Comptrain>Compress. Executor: not read, any shape.
codec: GPU: as Comptrain>Compress had it, or 'auto'. CPU: the stream says it.
mid_rise, bits, row_scales: XLA: as Comptrain>Compress had them.
x_hat: |x - x_hat| <= bound for every finite element; x itself for 'zvc'.
)doc");

REGISTER_OP("Comptrain>StreamMaskGrad")
    .Input("stream: uint8")
    .Input("dy: N * T")
    .Output("dx: T")
    .Attr("T: {float, bfloat16, half}")
    .Attr("N: int >= 1")
    .Attr("codec: {'plane', 'rans', 'zvc', 'auto'} = 'plane'")
    .Attr("bits: int = 8")
    .Attr("row_scales: bool = false")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Gradient of ReLU from the mid-rise or lossless stream of its output: dy where
the stored value is not zero, else 0.

dy: one gradient. XLA: or some, whose sum it is.
codec: GPU: as Comptrain>Compress had it, or 'auto'. CPU: the stream says it.
bits, row_scales: XLA: as Comptrain>Compress had them.
)doc");

REGISTER_OP("Comptrain>Fence")
    .Input("values: T")
    .Output("output: T")
    .Attr("T: list(type) >= 1")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Passes its inputs through, each once all of them are there.

Under XLA, which knows no control dependencies; readers of every output then come
after what makes the inputs. An input whose output nothing reads does not count.
)doc");

}  // namespace tensorflow
