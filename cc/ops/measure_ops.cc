// Ops that look: gradient statistics for the error-bound law, and the memory
// limit.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {

using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

REGISTER_OP("Comptrain>GradientStats")
    .Input("dy: T")
    .Input("enabled: bool")
    .Input("previous: float")
    .Output("stats: float")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused, previous;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &previous));
      c->set_output(0, previous);
      return absl::OkStatus();
    })
    .Doc(R"doc(
One reduction of an incoming gradient, on collecting steps only.

dy: gradient, channels last.
enabled: false: dy is not read and `previous` is passed on.
previous: [3].
stats: [3]: mean over channels k of sum dy_k^2, mean |dy|, non-finite elements.
)doc");

REGISTER_OP("Comptrain>MemoryLimit")
    .Input("x: T")
    .Input("limit_bytes: int64")
    .Output("output: T")
    .Attr("T: type")
    .Attr("where: string = ''")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      c->set_output(0, c->input(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Passes x through; ResourceExhausted when the device allocator's peak has been
above limit_bytes.

After a failure the peak is history: it is forgotten by the first call that finds
the memory in use back under the limit, so training can go on.

where: name of the place, for the message.
)doc");

REGISTER_OP("Comptrain>MemoryPlan")
    .Input("program: string")
    .Output("totals: int64")
    .Output("buffer_bytes: int64")
    .Output("made_by: string")
    .Output("shapes: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      c->set_output(0, c->Vector(3));
      for (int i = 1; i < 4; ++i) {
        c->set_output(i, c->Vector(InferenceContext::kUnknownDim));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Compiles a program of XLA's for the default device and reads its memory plan;
nothing runs.

program: an HloModuleProto, as tf.function's compiler IR "hlo_serialized".
totals: bytes of temporary memory, of arguments and of outputs.
buffer_bytes: of the temporary buffers alive at the peak, [n].
made_by: the TensorFlow operation behind each, else %instruction, [n].
shapes: theirs, with the data type, [n].
)doc");

}  // namespace tensorflow
