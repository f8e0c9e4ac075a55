"""Products that are made again in the shape in which they are read, without the matrix that a transposition reads."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_comptrain.graph.tensors import base_of


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
