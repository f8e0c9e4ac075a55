"""How the rows of what an operation reads become rows of what it makes: what a tile of rows can be made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf

from tf_comptrain.graph.operations import (
    ALL_BUT_LAST,
    BLANK,
    EVERY_AXIS,
    MOVE,
    REDUCTION,
    REPEAT,
    ROWS_OF_FIRST,
    SUMMATION,
    VIEW,
    about,
)
from tf_comptrain.graph.tiles.sizes import KnownSizes, Sizes, broadcast, keeps_axes, product, reduced


class Rows(NamedTuple):
    """Where the rows of a tensor are: `spread` dimensions from number `first` on, whose product is their number."""

    first: int
    spread: int

    @property
    def dimensions(self) -> range:
        return range(self.first, self.first + self.spread)

    def before(self, sizes: Sizes) -> Sizes:
        """The sizes of the dimensions before them."""
        return sizes[: self.first]

    def after(self, sizes: Sizes) -> Sizes:
        """The sizes of the dimensions after them."""
        return sizes[self.first + self.spread :]


class Fit(NamedTuple):
    """How one operation runs on a tile of rows.

    Attributes:
      inputs: By number of an input: its rows. The others are read whole, or stand for sizes.
      outputs: Rows of each output; None of one that is a sum over all rows.
      sizes: Of each output, as far as they follow from the inputs; () where the graph says all.
    """

    inputs: Mapping[int, Rows]
    outputs: tuple[Rows | None, ...]
    sizes: tuple[Sizes, ...] = ()


class _Mixed(Exception):
    """Rows of an operation depend on each other."""


def fit(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    """How an operation runs on a tile; None where its rows depend on each other, or where that is not known.

    Args:
      op: The operation.
      rows: By number of an input: its rows. At least one.
      known: What is known of sizes.
    """
    rule = _rule_of(op)
    if rule is None or (0 not in rows and rule not in _ANY_INPUT):
        return None
    if any(tensor.shape.rank is None for tensor in (*op.inputs, *op.outputs)):
        return None
    try:
        return rule(op, rows, known)
    except _Mixed:
        return None


def fit_result(op: tf.Operation, result: Rows, known: KnownSizes) -> Fit | None:
    """How an operation makes the rows of its result, of whose inputs none is known to have rows."""
    if len(op.outputs) != 1 or any(tensor.shape.rank is None for tensor in (*op.inputs, *op.outputs)):
        return None
    rule = _rule_of(op)
    if about(op.type).kind == BLANK:
        return Fit({}, (result,))
    if rule is _one_hot:
        return _one_hot(op, {0: result}, known)
    if rule is _reshaped:
        before = viewed(result, known.of(op.outputs[0]), known.of(op.inputs[0]))
        return None if before is None else Fit({0: before}, (result,))
    if rule is _reduced and keeps_axes(op):
        axes = known.axes(op.inputs[1])
        return None if axes is None or not axes.isdisjoint(result.dimensions) else Fit({0: result}, (result,))
    if rule not in (_elementwise, _repeated):
        return None
    operands = list(op.inputs) if rule is _elementwise else [op.inputs[0]]
    try:
        found = {number: _operand_rows(t, result, op.outputs[0], known) for number, t in enumerate(operands)}
    except _Mixed:
        return None
    return Fit({number: rows for number, rows in found.items() if rows is not None}, (result,))


def viewed(rows: Rows, before: Sizes, after: Sizes) -> Rows | None:
    """The rows of a tensor in another shape, by sizes before and after; None where they are not known to be there.

    Of several answers, which differ by dimensions of one value, that with the fewest dimensions.
    """
    head, rest = product(rows.before(before)), product(rows.after(before))
    if head is None or rest is None:
        return None
    for first in range(len(after)):
        for end in range(first + 1, len(after) + 1):
            if product(after[:first]) == head and product(after[end:]) == rest:
                return Rows(first, end - first)
    return None


def _operand_rows(tensor: tf.Tensor, result: Rows, output: tf.Tensor, known: KnownSizes) -> Rows | None:
    """Rows of an operand that is broadcast to a result with rows; None where all rows read the same of it."""
    own, whole = known.of(tensor), known.of(output)
    shift = len(whole) - len(own)
    places = [place - shift for place in result.dimensions]
    if all(place < 0 or own[place] == 1 for place in places):
        return None
    if places[0] < 0 or any(own[place] == 1 != whole[place + shift] for place in places):
        raise _Mixed
    return Rows(places[0], result.spread)


def _elementwise(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    rank = op.outputs[0].shape.rank
    shifts = [rank - tensor.shape.rank for tensor in op.inputs]
    results = {Rows(found.first + shifts[number], found.spread) for number, found in rows.items()}
    if len(results) != 1 or len(op.outputs) != 1:
        return None
    (result,) = results
    operands = {
        n: rows.get(n) or _operand_rows(t, result, op.outputs[0], known) for n, t in enumerate(op.inputs)
    }
    sizes = broadcast([known.of(tensor) for tensor in op.inputs])
    return Fit({n: found for n, found in operands.items() if found is not None}, (result,), (sizes,))


def _reduced(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    """Of sums and the like along axes; over all rows only a sum."""
    own, found = known.of(op.inputs[0]), rows[0]
    if op.type == "L2Loss":
        return None
    if op.type == "BiasAddGrad":
        axes, keeps, is_sum = set(range(len(own) - 1)), False, True
    else:
        axes = _axes(op.inputs[1], len(own), known)
        keeps = keeps_axes(op)
        is_sum = op.type == "Sum"
    left = reduced(own, axes, keeps)
    if axes.isdisjoint(found.dimensions):
        shift = 0 if keeps else sum(axis < found.first for axis in axes)
        return Fit(rows, (Rows(found.first - shift, found.spread),), (left,))
    return Fit(rows, (None,), (left,)) if is_sum and axes.issuperset(found.dimensions) else None


def _axes(operand: tf.Tensor, rank: int, known: KnownSizes) -> set[int]:
    axes = known.axes(operand)
    if axes is None:
        raise _Mixed
    return {axis % max(rank, 1) for axis in axes}


def _along_last(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    own, found = known.of(op.inputs[0]), rows[0]
    if len(own) - 1 in found.dimensions:
        return None
    return Fit(rows, (found,) * len(op.outputs), (own,) if len(op.outputs) == 1 else ())


def _by_samples(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    """Of a loss or a metric for each row of a matrix; a gradient of the matrix beside a loss."""
    if any(found != Rows(0, 1) for found in rows.values()):
        return None
    inputs, outputs = {0: Rows(0, 1), 1: Rows(0, 1)}, (Rows(0, 1),) * len(op.outputs)
    return Fit(inputs, outputs, ((None,), known.of(op.inputs[0]))[: len(op.outputs)])


def _one_hot(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    if set(rows) != {0} or op.get_attr("axis") not in (-1, op.inputs[0].shape.rank):
        return None
    return Fit(rows, (rows[0],))


def _multiplied(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    """Of a product of matrices: rows of either factor stay rows; where both have them along what is summed, a sum."""
    flags = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    sizes = [known.of(tensor) for tensor in op.inputs]
    swapped = [op.get_attr(flag) for flag in flags]
    free = [len(sizes[0]) - 2 + swapped[0], len(sizes[1]) - 1 - swapped[1]]
    summed = [len(sizes[0]) - 1 - swapped[0], len(sizes[1]) - 2 + swapped[1]]
    ends = (sizes[0][free[0]], sizes[1][free[1]])
    if any(summed[number] in found.dimensions for number, found in rows.items()):
        inputs = {number: Rows(summed[number], 1) for number in (0, 1)}
        is_sum = len(sizes[0]) == len(sizes[1]) == 2 and all(inputs[n] == found for n, found in rows.items())
        return Fit(inputs, (None,), (ends,)) if is_sum else None
    if len(rows) != 1:
        return None
    ((number, found),) = rows.items()
    rank = op.outputs[0].shape.rank
    if free[number] not in found.dimensions or rank != len(sizes[number]):
        return None
    place = rank - 2 + number
    if found.spread > 1 and (free[number] != place or len(sizes[1 - number]) != 2):
        return None  # of a product with one matrix all dimensions before the last may be rows
    result = Rows(place - found.spread + 1, found.spread)
    before = sizes[number][: rank - 2]
    return Fit(rows, (result,), ((*before, *ends),))


def _reshaped(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    found = viewed(rows[0], known.of(op.inputs[0]), known.of(op.outputs[0]))
    return None if found is None else Fit(rows, (found,))


def _transposed(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    order = tf.get_static_value(op.inputs[1])
    if order is None:
        return None
    places = [list(order).index(place) for place in rows[0].dimensions]
    if places != list(range(places[0], places[0] + len(places))):
        return None
    own = known.of(op.inputs[0])
    return Fit(rows, (Rows(places[0], len(places)),), (tuple(own[place] for place in order),))


def _repeated(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    shift = op.outputs[0].shape.rank - op.inputs[0].shape.rank
    return Fit(rows, (Rows(rows[0].first + shift, rows[0].spread),))


def _joined(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    parts = range(len(op.inputs) - 1)
    axes = _axes(op.inputs[len(parts)], op.outputs[0].shape.rank, known)
    found = set(rows.values())
    if len(found) != 1 or not axes.isdisjoint(next(iter(found)).dimensions):
        return None
    (each,) = found
    return Fit(dict.fromkeys(parts, each), (each,))


_Rule = Callable[[tf.Operation, Mapping[int, Rows], KnownSizes], Fit | None]

_BY_NAME: Mapping[str, _Rule] = {
    "ConcatV2": _joined,
    "InTopKV2": _by_samples,
    "OneHot": _one_hot,
    "SoftmaxCrossEntropyWithLogits": _by_samples,
    "SparseSoftmaxCrossEntropyWithLogits": _by_samples,
    "TopKV2": _along_last,
}
_BY_KIND: Mapping[str, _Rule] = {
    MOVE: _transposed,
    REDUCTION: _reduced,
    REPEAT: _repeated,
    SUMMATION: _reduced,
    VIEW: _reshaped,
}
_BY_ROWS: Mapping[str, _Rule] = {
    ALL_BUT_LAST: _along_last,
    EVERY_AXIS: _elementwise,
    ROWS_OF_FIRST: _multiplied,
}
# Rules of operations whose rows may be those of any input; of the others they are those of the first.
_ANY_INPUT = (_by_samples, _elementwise, _joined, _multiplied)


def _rule_of(op: tf.Operation) -> _Rule | None:
    row = about(op.type)
    return _BY_NAME.get(op.type) or _BY_KIND.get(row.kind) or _BY_ROWS.get(row.rows)
