"""Which dimensions of a tensor are channels: those that have a scale each in a stream."""

from __future__ import annotations

import math

import tensorflow as tf

from tf_comptrain.graph.ingredients import Ingredients
from tf_comptrain.graph.operations import EVERY_AXIS, MATRIX_PRODUCT, about
from tf_comptrain.graph.tensors import base_of
from tf_comptrain.graph.tiles.letters import letters_of

_FURTHEST = 30  # operations back to the product that made the channels


def channel_dimensions(tensor: tf.Tensor) -> int:
    """How many of the last dimensions of a tensor are its channels.

    Heads and what each of them has are, where a product with one weight makes both; so are the groups of a group
    normalization.
    """
    sizes = tensor.shape
    if sizes.rank is None or sizes.rank < 3:
        return 1
    count = _count(tensor, Ingredients(), _FURTHEST)
    return count if count < sizes.rank and sizes[-count:].is_fully_defined() else 1


def _count(tensor: tf.Tensor, ingredients: Ingredients, further: int) -> int:
    tensor = base_of(tensor)
    op, rank = tensor.op, tensor.shape.rank
    if further == 0 or rank is None or not op.inputs:
        return 1
    if op.type == "Einsum":
        return _made_by_product(op, ingredients, further)
    if about(op.type).is_view:
        return _viewed(op.inputs[0], tensor, _count(op.inputs[0], ingredients, further - 1))
    if op.type == "ConcatV2" or about(op.type).rows == EVERY_AXIS and about(op.type).kind != MATRIX_PRODUCT:
        for operand in op.inputs:
            if operand.shape.rank == rank and operand.dtype.is_floating:
                found = _count(operand, ingredients, further - 1)
                if found > 1:
                    return found
    return 1


def _made_by_product(product: tf.Operation, ingredients: Ingredients, further: int) -> int:
    """How many of the last dimensions of a product are those of a weight, or channels of a factor, as of values."""
    terms = letters_of(product)
    if terms is None:
        return 1
    first, second, made = terms
    for own, other, factor in ((first, second, product.inputs[0]), (second, first, product.inputs[1])):
        if not ingredients.has_activations(factor):
            alone = [letter in own and letter not in other for letter in reversed(made)]
            return (*alone, False).index(False)
        found = _count(factor, ingredients, further - 1)
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
