"""Which dimensions of a tensor are channels: those that have a scale each in a stream."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tf_comptrain.graph.held_or_rebuilt import NORMALIZATION
from tf_comptrain.graph.ingredients import Ingredients
from tf_comptrain.graph.operations import EVERY_AXIS, MATRIX_PRODUCT, about
from tf_comptrain.graph.tensors import base_of, views_of
from tf_comptrain.graph.tiles.letters import letters_of

_FURTHEST = 30  # operations back to the product that made the channels


def channel_dimensions(tensor: tf.Tensor) -> int:
    """How many of the last dimensions of a tensor are its channels.

    Heads and what each of them has are, where a product with one weight makes both; so are the groups of a group
    normalization. A batch normalization has channels of its own, whatever made what it reads.
    """
    sizes = tensor.shape
    if sizes.rank is None or sizes.rank < 3 or is_batch_normalized(tensor):
        return 1
    count = _ChannelSearch().count(tensor, _FURTHEST)
    return count if count < sizes.rank and sizes[-count:].is_fully_defined() else 1


def is_batch_normalized(tensor: tf.Tensor) -> bool:
    """Whether a batch normalization reads a tensor or a view of it."""
    views = views_of(tensor, in_any_order=True)
    return any(op.type == NORMALIZATION for view in views for op in view.consumers())


class _ChannelSearch:
    """Goes back from a tensor to the product that made its channels, through each operation once."""

    def __init__(self) -> None:
        self._ingredients = Ingredients()
        self._found: dict[Any, int] = {}

    def count(self, tensor: tf.Tensor, further: int) -> int:
        """How many of the last dimensions are channels; 1 where that is so many operations away."""
        tensor = base_of(tensor)
        if tensor.ref() not in self._found:
            self._found[tensor.ref()] = 1 if further == 0 else self._count(tensor, further - 1)
        return self._found[tensor.ref()]

    def _count(self, tensor: tf.Tensor, further: int) -> int:
        op, rank = tensor.op, tensor.shape.rank
        if rank is None or not op.inputs:
            return 1
        row = about(op.type)
        if op.type == "Einsum":
            return self._made_by_product(op, further)
        if row.is_view:
            return _viewed(op.inputs[0], tensor, self.count(op.inputs[0], further))
        if op.type == "ConcatV2" or row.rows == EVERY_AXIS and row.kind != MATRIX_PRODUCT:
            alike = (each for each in op.inputs if each.shape.rank == rank and each.dtype.is_floating)
            return next((found for each in alike if (found := self.count(each, further)) > 1), 1)
        return 1

    def _made_by_product(self, product: tf.Operation, further: int) -> int:
        """How many of the last dimensions are those of a weight, or channels of a factor, as of values."""
        terms = letters_of(product)
        if terms is None:
            return 1
        first, second, made = terms
        for own, other, factor in ((first, second, product.inputs[0]), (second, first, product.inputs[1])):
            if not self._ingredients.has_activations(factor):
                alone = [letter in own and letter not in other for letter in reversed(made)]
                return max((*alone, False).index(False), 1)
            found = self.count(factor, further)
            if found > 1 and own[-found:] == made[-found:]:
                return found
        return 1


def _viewed(before: tf.Tensor, after: tf.Tensor, count: int) -> int:
    """How many of the last dimensions of a view have the channels that were in the last `count` before."""
    if before.shape.rank is None or not before.shape[-count:].is_fully_defined():
        return 1
    channels = math.prod(before.shape[-count:])
    for found in range(1, after.shape.rank + 1):
        sizes = after.shape[-found:]
        if not sizes.is_fully_defined() or math.prod(sizes) > channels:
            return 1
        if math.prod(sizes) == channels:
            return found
    return 1
