"""What a tensor of a graph is made of: weights, indices, constants, activations."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import tensorflow as tf

from tf_comptrain.graph.operations import MATRIX_PRODUCT, RANDOM, about
from tf_comptrain.graph.tensors import base_of

# As bits. Masks are truth values and places that activations decide on, and have no error. Weights together with
# indices or masks are an activation too (an embedding).
WEIGHTS, INDICES, ACTIVATIONS, MASKS = 1, 2, 4, 8


def is_free(tensor: tf.Tensor) -> bool:
    return about(tensor.op.type).is_free or tensor.dtype in (tf.resource, tf.variant, tf.string)


def constant_of(tensor: tf.Tensor) -> float | None:
    """The value of a number that is known when the graph is made; None where it is not."""
    tensor = base_of(tensor)
    if tensor.op.type == "Sub":
        first, second = (constant_of(operand) for operand in tensor.op.inputs)
        return None if first is None or second is None else first - second
    value = tf.get_static_value(tensor)
    return float(value) if value is not None and np.ndim(value) == 0 else None


def exact_inputs(op: tf.Operation) -> tuple[int, ...]:
    """Numbers of the inputs of which an error would grow, or make another index or truth value, where it runs again."""
    if op.type == "Pow":
        exponent = constant_of(op.inputs[1])
        return () if exponent is not None and exponent >= 1 and exponent % 1 == 0 else (0,)
    row, made = about(op.type), op.outputs[0].dtype
    if row.is_elementwise and (made.is_integer or made == tf.bool):
        return tuple(number for number, tensor in enumerate(op.inputs) if tensor.dtype.is_floating)
    return row.exact


def _is_seen_through(tensor: tf.Tensor) -> bool:
    """Whether a tensor is made of what its operation reads; a count, such as a product of sizes, is too."""
    row = about(tensor.op.type)
    return bool(row.again) or row.kind == MATRIX_PRODUCT or tensor.dtype.is_integer


def _decides(tensor: tf.Tensor) -> bool:
    """Whether a tensor says which: truth values, and whole numbers that are no rounded values."""
    return tensor.dtype == tf.bool or tensor.dtype.is_integer and tensor.op.type != "Cast"


class Ingredients:
    """Of the tensors of a graph; what was found stays.

    Args:
      again: Names of operations that run again. Random numbers are drawn again by the same indices.
    """

    def __init__(self, again: Collection[str] = ()) -> None:
        self._made_of: dict[int, int] = {}  # by id of a tensor, which its graph keeps
        self._again = again

    def has_activations(self, tensor: tf.Tensor) -> bool:
        return bool(self.of(tensor) & (ACTIVATIONS | MASKS))

    def has_errors(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor is made of activations that may have an error."""
        return bool(self.of(tensor) & ACTIVATIONS)

    def is_exact_by_nature(self, tensor: tf.Tensor) -> bool:
        """Whether cheap operations make a tensor of weights alone, or of indices and masks: none of them has errors."""
        made_of = self.of(tensor)
        return made_of == WEIGHTS or not made_of & (WEIGHTS | ACTIVATIONS)

    def of(self, tensor: tf.Tensor) -> int:
        """The bits of all that a tensor is made of by cheap operations and products; 0 of constants alone."""
        found = self._made_of
        waiting = [] if id(tensor) in found else [tensor]
        while waiting:
            current = waiting[-1]
            op, inputs = current.op, current.op.inputs
            if id(current) in found:
                waiting.pop()
            elif op.type == "ReadVariableOp":
                found[id(current)] = WEIGHTS
            elif op.type == "Placeholder":
                found[id(current)] = ACTIVATIONS if current.dtype.is_floating else INDICES
            elif about(op.type).kind == RANDOM and op.name in self._again:
                found[id(current)] = INDICES
            elif is_free(current):
                found[id(current)] = 0
            elif not (inputs and _is_seen_through(current)):
                found[id(current)] = MASKS if _decides(current) else ACTIVATIONS
            else:
                unknown = [operand for operand in inputs if id(operand) not in found]
                waiting += unknown
                if not unknown:
                    made_of = 0
                    for operand in inputs:
                        made_of |= found[id(operand)]
                    if made_of & WEIGHTS and made_of & (INDICES | MASKS):  # an embedding
                        made_of |= ACTIVATIONS
                    if made_of & ACTIVATIONS and _decides(current):
                        made_of = made_of & INDICES | MASKS
                    found[id(current)] = made_of
        return found[id(tensor)]
