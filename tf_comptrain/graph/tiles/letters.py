"""The dimensions of products as letters, as in the equation of an einsum."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from tf_comptrain.graph.operations import MATRIX_PRODUCT, about
from tf_comptrain.graph.tiles.sizes import Sizes


def letters_of(op: tf.Operation) -> tuple[str, str, str] | None:
    """The dimensions of both factors and of their product, as letters; None where that is not known.

    Nor where an adjoint matrix would be conjugated.
    """
    ranks = [tensor.shape.rank for tensor in op.inputs]
    if about(op.type).kind != MATRIX_PRODUCT or len(ranks) != 2 or None in ranks:
        return None
    if op.type == "Einsum":
        terms, _, result = op.get_attr("equation").decode().partition("->")
        first, _, second = terms.partition(",")
        simple = all(term.isalpha() and len(set(term)) == len(term) for term in (first, second, result))
        return (first, second, result) if simple and set(result) <= {*first, *second} else None
    if op.type != "MatMul" and op.outputs[0].dtype.is_complex:
        return None
    flags = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    swapped = [op.get_attr(flag) for flag in flags]
    many = "abcdefgh"[: max(ranks) - 2]
    one, other = (_letters_of_many(many, op.inputs[n].shape, op.inputs[1 - n].shape) for n in (0, 1))
    return one + ("zx" if swapped[0] else "xz"), other + ("yz" if swapped[1] else "zy"), many + "xy"


def _letters_of_many(many: str, shape: tf.TensorShape, others: tf.TensorShape) -> str:
    """Letters of the dimensions before those of matrices: capital where one matrix meets several of the others."""
    found = ""
    for place in range(3, shape.rank + 1):
        size, other = shape[-place], others[-place] if place <= others.rank else 1
        letter = many[2 - place]
        found = (letter.upper() if size == 1 != other else letter) + found
    return found


def sizes_made(terms: Sequence[str], sizes: Sequence[Sizes]) -> Sizes:
    """The sizes of a product, by those of its factors."""
    of_letters: dict[str, int | None] = {}
    for term, own in zip(terms, sizes):
        for letter, size in zip(term, own):
            if of_letters.get(letter) is None:
                of_letters[letter] = size
    return tuple(of_letters[letter] for letter in terms[-1])


def swapped_product(product: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor | None:
    """What a product makes of these factors, with the second one first.

    XLA sums along the last dimension of the first factor, and along the one before of the second. A first
    factor that is summed along another one it transposes: all values once more, read across rows.

    Returns:
      The product; None where that would not spare the larger factor its transposition.
    """
    terms = letters_of(product) if product.type in ("BatchMatMulV2", "Einsum") else None
    if terms is None:
        return None
    first, second, made = terms
    if first[-1] not in made or _alone(first, second, x) <= _alone(second, first, y):
        return None
    if product.type == "Einsum":
        return tf.einsum(f"{second},{first}->{made}", y, x)
    adj_x, adj_y = product.get_attr("adj_x"), product.get_attr("adj_y")
    return tf.linalg.matrix_transpose(tf.raw_ops.BatchMatMulV2(x=y, y=x, adj_x=not adj_y, adj_y=not adj_x))


def _alone(own: str, other: str, factor: tf.Tensor) -> int:
    """How many values a factor has along the dimensions that the other one lacks, as far as that is known."""
    sizes = (size for letter, size in zip(own, factor.shape) if letter not in other)
    return math.prod(size or 1 for size in sizes)
