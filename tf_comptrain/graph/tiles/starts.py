"""Which products make something wide, and what their rows may be."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tf_comptrain.graph.operations import MATRIX_PRODUCT, about
from tf_comptrain.graph.tensors import USUAL_BATCH, behind_views, plain_bytes
from tf_comptrain.graph.tiles import limits
from tf_comptrain.graph.tiles.letters import letters_of
from tf_comptrain.graph.tiles.rows import Rows, leading, viewed
from tf_comptrain.graph.tiles.sizes import KnownSizes, product

_USUAL_LENGTH = 64


def has_wide_products(graph: tf.Graph, sizes: limits.TileSizes) -> bool:
    """Whether tiles of these sizes may have a part in a step."""
    known = KnownSizes()
    return any(is_wide(op, known, sizes) for op in graph.get_operations())


def is_wide(op: tf.Operation, known: KnownSizes, sizes: limits.TileSizes) -> bool:
    """Whether a product makes rows much longer than those it reads, or matrices much larger than both factors."""
    if about(op.type).kind != MATRIX_PRODUCT:
        return False
    if _usual_bytes(op) < sizes.of(op.outputs[0].dtype).least_bytes:
        return False
    return _makes_large_matrices(op, known) or _makes_long_rows(op, known)


def _usual_bytes(op: tf.Operation) -> int:
    """Of what a product makes; where only a run says samples and their length, of a usual batch of usual length."""
    made, read = op.outputs[0], behind_views(op.inputs[0]).shape
    unknown = 0 if read.rank is None else list(read).count(None)
    if unknown < 2 or made.shape.rank is None or made.shape[-1] is None:
        return plain_bytes(made)
    return USUAL_BATCH * _USUAL_LENGTH ** (unknown - 1) * made.shape[-1] * made.dtype.size


def _makes_large_matrices(op: tf.Operation, known: KnownSizes) -> bool:
    """Whether many products make matrices that are each much larger than both factors."""
    many = _rows_of_many(op)
    if not many:
        return False
    first, second, made = (
        product(rows.others(known.of(tensor))) for rows, tensor in zip(many, (*op.inputs, *op.outputs))
    )
    return None not in (first, second, made) and limits.WIDER * max(first, second) <= made  # type: ignore[operator, type-var]


def _makes_long_rows(op: tf.Operation, known: KnownSizes) -> bool:
    made, read = op.outputs[0], op.inputs[0]
    ranks = made.shape.rank, read.shape.rank
    if len(op.inputs) != 2 or op.inputs[1].shape.rank != 2 or None in ranks or ranks[0] != ranks[1]:
        return False
    width, before = known.of(made)[-1], known.of(read)[-1]
    return op.type != "Einsum" and bool(width and before and width >= limits.WIDER * before)


def _rows_of_many(op: tf.Operation) -> tuple[Rows, ...]:
    """The dimensions of both factors and of the result along which these are many matrices; () where there are none."""
    terms = letters_of(op)
    many = [letter for letter in terms[-1] if letter in terms[0] and letter in terms[1]] if terms else []
    # What one dimension has, views have without those of size 1.
    several = [letter for letter in many if op.outputs[0].shape[terms[-1].index(letter)] != 1]  # type: ignore[index]
    many = several or many[:1]
    return tuple(Rows(tuple(term.index(letter) for letter in many)) for term in terms or () if many)


class Start(NamedTuple):
    """Rows to begin with: of either factor of a product, None where it is read whole, and of what that makes."""

    factors: tuple[Rows | None, ...]
    made: Rows


def starts(wide: tf.Operation, known: KnownSizes, tile_bytes: int) -> list[Start]:
    """What may be the rows of a product, best first.

    Of many products the matrices, which are whole products still, or all those of a sample, which may be added up over
    samples; where one of them is more than a tile, the rows of the matrices of one factor, as an attention's queries.
    """
    many = _rows_of_many(wide)
    if not many:
        read = wide.inputs[0]
        rows = leading(read.shape.rank - 1)
        rows = viewed(rows, known.of(read), known.of(read)) or rows
        return [Start((rows, None), rows)]

    def fits(start: Start) -> bool:
        values = product(start.made.others(known.of(wide.outputs[0]))) or 0
        return values * wide.outputs[0].dtype.size <= tile_bytes

    matrices = Start(many[:-1], many[-1])
    samples = Start(tuple(rows.first for rows in many[:-1]), many[-1].first)
    whole = [start for start in dict.fromkeys((matrices, samples)) if fits(start)]
    return [*whole, *_rows_of_one_factor(wide), *([] if whole else [matrices])]


def _rows_of_one_factor(wide: tf.Operation) -> list[Start]:
    """The dimension of many matrices that one factor has alone: of the first factor, then of the second."""
    *factors, made = letters_of(wide)  # type: ignore[misc]
    found = []
    for number, other in ((0, 1), (1, 0)):
        for letter in reversed(made):
            if letter in factors[number] and letter not in factors[other]:
                own = Rows((factors[number].index(letter),))
                found.append(Start((own, None) if number == 0 else (None, own), Rows((made.index(letter),))))
                break
    return found
