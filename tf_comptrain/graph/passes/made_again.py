"""What is made again in another form than the forward pass has made it in, so that less is held or made meanwhile.

Rows of a weight are looked up again without its value being held until then. Products come in the shape in which they
are read, without the matrix that a transposition reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
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


def transposed_product(tensor: tf.Tensor) -> tf.Operation | None:
    """The product of matrices that a tensor has transposed, as Keras' einsum makes an attention's scores.

    Returns:
      A `BatchMatMulV2`; None where the tensor is something else, or complex, which an adjoint matrix conjugates.
    """
    if tensor.op.type != "Transpose" or tensor.dtype.is_complex:
        return None
    product, order = base_of(tensor.op.inputs[0]).op, tf.get_static_value(tensor.op.inputs[1])
    if product.type != "BatchMatMulV2" or order is None:
        return None
    rank = len(order)
    return product if np.array_equal(order, [*range(rank - 2), rank - 1, rank - 2]) else None


def multiply_transposed(product: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """(x y)^T = y^T x^T, for a product with these factors."""
    adj_x, adj_y = product.get_attr("adj_x"), product.get_attr("adj_y")
    return tf.raw_ops.BatchMatMulV2(x=y, y=x, adj_x=not adj_y, adj_y=not adj_x, name="rebuilt/transposed")
