// Ops that let a tensor wait in a file between the forward and the backward
// pass.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {

using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

REGISTER_OP("Comptrain>Spill")
    .Input("value: T")
    .Input("plain_bytes: int64")
    .Output("handle: variant")
    .Attr("T: {uint8, float, bfloat16, half}")
    .Attr("folder: string")
    .Attr("inflight_bytes: int")
    .Attr("least_bytes: int = 65536")
    .Attr("site: string = ''")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Begins to write a tensor into this process' file in a folder.

The tensor's memory is free once it is written and nothing else reads it. Its place
in the file is free once the handle is gone, after its last Comptrain>Fetch or with
a step that failed.

value: what is moved.
plain_bytes: of the activation that it stands for, for Comptrain>OffloadTraffic.
handle: stands for the value.
folder: has to be there.
inflight_bytes: the op ends when no more than so many bytes wait to be written, or
  its own alone. 0: as many as two of the largest values that went to that file.
least_bytes: smaller values stay in memory.
site: whom the traffic counts for.
)doc");

REGISTER_OP("Comptrain>ReadAhead")
    .Input("handle: variant")
    .Output("same: variant")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Begins to read a tensor of Comptrain>Spill back, and does not wait for it.

same: the handle.
)doc");

REGISTER_OP("Comptrain>Fetch")
    .Input("handle: variant")
    .Output("value: T")
    .Attr("T: {uint8, float, bfloat16, half}")
    .SetShapeFn(shape_inference::UnknownShape)
    .Doc(R"doc(
The tensor of a handle: from memory where it is there, else from the file, with its
checksum compared.

FailedPrecondition where it could not be written or read, DataLoss where other bytes
come back.
)doc");

REGISTER_OP("Comptrain>OffloadTraffic")
    .Output("folders: string")
    .Output("sites: string")
    .Output("moved: int64")
    .Output("seconds: double")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      const auto rows = c->UnknownDim();
      c->set_output(0, c->Vector(rows));
      c->set_output(1, c->Vector(rows));
      c->set_output(2, c->Matrix(rows, 5));
      c->set_output(3, c->Matrix(rows, 2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
What this process has moved so far, a row for each folder and site.

moved: tensors, and bytes: as plain values, as handed to Comptrain>Spill, written,
  read.
seconds: waited until there was room in flight, and for tensors that came back.
)doc");

}  // namespace tensorflow
