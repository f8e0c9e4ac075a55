"""Rows of a weight that are looked up again in the backward pass, without the weight's value being held until then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_comptrain.graph.ingredients import constant_of
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import base_of, readers_of

_READS = frozenset(("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"))


def rows_again(
    op: tf.Operation, operands: Sequence[tf.Tensor], places: Mapping[str, int], start: int
) -> tf.Tensor | None:
    """What `GatherV2` makes of a variable's value, looked up in the variable itself.

    A variable whose rows were scattered into, as SGD does with those of an embedding, is copied whole by each reading
    of its value. A second lookup in that value would hold the copy from the forward to the backward pass. The forward
    pass looks up in the variable too, so that nothing needs the value.

    Args:
      op: Of the forward pass.
      operands: Of the second lookup.
      places: Of the graph's operations, by name.
      start: Where the backward pass begins.

    Returns:
      The rows; None where `op` does not look up rows of a variable, or the variable may change before the backward
      pass.
    """
    if op.type != "GatherV2" or op.get_attr("batch_dims") or constant_of(op.inputs[2]) != 0:
        return None
    reading = base_of(op.inputs[0]).op
    if reading.type != "ReadVariableOp":
        return None
    variable = reading.inputs[0]
    between = range(places[reading.name], start)
    users = (user for user in variable.consumers() if places.get(user.name, start) in between)
    if any(user.type not in _READS for user in users):
        return None
    with tf.device(reading.device):
        if readers := readers_of(op.outputs[0]):
            redirect(readers, _rows(op, variable, op.inputs[1]))
        return _rows(op, variable, operands[1])


def _rows(op: tf.Operation, variable: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    rows = tf.raw_ops.ResourceGather(resource=variable, indices=indices, dtype=op.outputs[0].dtype)
    rows.set_shape(op.outputs[0].shape)
    return rows
