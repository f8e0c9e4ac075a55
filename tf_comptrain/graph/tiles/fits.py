"""How the rows of what an operation reads become rows of what it makes: what a tile of rows can be made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_comptrain.graph.held_or_rebuilt import DROPOUT
from tf_comptrain.graph.operations import (
    ALL_BUT_LAST,
    BLANK,
    EVERY_AXIS,
    LOSS,
    MATRIX_PRODUCT,
    MOVE,
    REDUCTION,
    REPEAT,
    SUMMATION,
    VIEW,
    about,
)
from tf_comptrain.graph.tiles.cuts import RowCut, cut_of, slices_rows, whole_and_part
from tf_comptrain.graph.tiles.letters import letters_of, sizes_made
from tf_comptrain.graph.tiles.picks import GATHER, SLICE, drops_last, picks_of_rows
from tf_comptrain.graph.tiles.rows import Rows, leading, operand_rows, viewed
from tf_comptrain.graph.tiles.sizes import (
    KnownSizes,
    Sizes,
    broadcast,
    keeps_axes,
    product,
    reduced,
)

MASKED = "Comptrain>BitmaskGrad"  # the gradient of a dropout
# Draws numbers of a key from a place on that is an operand: a tile draws its own.
DRAWN = "StatelessRandomUniformV2"
_DRAWN_BY_FOURS = (tf.float32, tf.bfloat16, tf.float16)


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

    def of_cut(self, cut: RowCut | None) -> Fit:
        """The same for rows of which some are left out."""
        inputs = {number: rows._replace(cut=cut) for number, rows in self.inputs.items()}
        outputs = tuple(rows and rows._replace(cut=cut) for rows in self.outputs)
        return self._replace(inputs=inputs, outputs=outputs)


class _Mixed(Exception):
    """Rows of an operation depend on each other."""


def fit(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    """How an operation runs on a tile; None where its rows depend on each other, or where that is not known.

    Args:
      op: The operation.
      rows: By number of an input: its rows. At least one.
      known: What is known of sizes.
    """
    cuts = {found.cut for found in rows.values()}
    if slices_rows(op) and (found := _cut(op, rows, known)) is not None:
        return found
    rule = _rule_of(op)
    if rule is None or (0 not in rows and rule not in _ANY_INPUT) or len(cuts) != 1:
        return None
    whole = {number: found._replace(cut=None) for number, found in rows.items()}
    if rule is _dropped:
        return _dropped(op, rows, known) if cuts == {None} else None
    if any(known.rank(tensor) is None for tensor in (*op.inputs, *op.outputs)):
        return None
    try:
        fitting = rule(op, whole, known)
    except _Mixed:
        return None
    return None if fitting is None else fitting.of_cut(cuts.pop())


def _cut(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    """Of a slice of rows, or its gradient: on a tile, which has all rows, it changes none, or blanks others."""
    is_slice = op.type == SLICE
    number = 0 if is_slice else len(op.inputs) - 1
    whole, _ = whole_and_part(op)
    own = rows.get(number)
    if own is None or known.rank(whole) is None or known.rank(op.inputs[number]) is None:
        return None
    cut = cut_of(op, known.of(whole), own.dimensions)
    if cut is None or own.cut != (None if is_slice else cut):
        return None
    return Fit({number: own}, (own._replace(cut=cut if is_slice else None),))


def fit_result(tensor: tf.Tensor, result: Rows, known: KnownSizes) -> Fit | None:
    """How the rows of a tensor are made by an operation of whose inputs none is known to have rows."""
    op = tensor.op
    if op.type == SLICE and result.cut is not None and known.rank(op.inputs[0]) is not None:
        if cut_of(op, known.of(op.inputs[0]), result.dimensions) == result.cut:
            return Fit({0: result._replace(cut=None)}, (result,))
        return None
    found = _fit_result(tensor, result._replace(cut=None), known)
    return None if found is None else found.of_cut(result.cut)


def _fit_result(tensor: tf.Tensor, result: Rows, known: KnownSizes) -> Fit | None:
    op = tensor.op
    if op.type in (DROPOUT, MASKED):
        return _dropped(op, {int(op.type == MASKED): result}, known)
    rule = _rule_of(op)
    if rule is not _passed and len(op.outputs) != 1:
        return None
    if any(known.rank(each) is None for each in (*op.inputs, *op.outputs)):
        return None
    if about(op.type).kind == BLANK or op.type == DRAWN and _may_draw(op.outputs[0], result, known):
        return Fit({}, (result,))
    if rule is _one_hot or rule is _along_last or rule is _passed:
        return rule(op, {tensor.value_index: result}, known)
    if rule is _multiplied:
        return _multiplied_to(op, result)
    if rule is _transposed:
        order = known.order(op.inputs[1])
        if order is None:
            return None
        return Fit({0: Rows(tuple(order[place] for place in result.dimensions))}, (result,))
    if rule is _reshaped:
        before = viewed(result, known.of(op.outputs[0]), known.of(op.inputs[0]))
        return None if before is None else Fit({0: before}, (result,))
    if rule is _reduced and len(op.inputs) == 2:
        return _reduced_to(op, result, known)
    if rule not in (_elementwise, _repeated):
        return None
    operands = list(op.inputs) if rule is _elementwise else [op.inputs[0]]
    found = {number: operand_rows(t, result, op.outputs[0], known) for number, t in enumerate(operands)}
    return Fit({number: rows for number, rows in found.items() if rows is not None}, (result,))


def _elementwise(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    ranks = [len(known.of(tensor)) for tensor in op.inputs]
    shifts = [max(ranks) - rank for rank in ranks]
    results = {found.moved(shifts[number]) for number, found in rows.items()}
    if len(results) != 1 or len(op.outputs) != 1:
        return None
    (result,) = results
    operands = {
        n: rows.get(n) or operand_rows(t, result, op.outputs[0], known) for n, t in enumerate(op.inputs)
    }
    sizes = broadcast([known.of(tensor) for tensor in op.inputs])
    return Fit({n: found for n, found in operands.items() if found is not None}, (result,), (sizes,))


def _reduced(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    """Of sums and the like along axes; over all rows a sum, or the largest of what is never below zero."""
    own, found = known.of(op.inputs[0]), rows[0]
    if op.type == "L2Loss":
        return None
    if op.type == "BiasAddGrad":
        axes, keeps, is_sum = set(range(len(own) - 1)), False, True
    else:
        axes = _axes(op.inputs[1], len(own), known)
        keeps = keeps_axes(op)
        is_sum = op.type == "Sum" or op.type == "Max" and about(op.inputs[0].op.type).least == 0.0
    left = reduced(own, axes, keeps)
    if axes.isdisjoint(found.dimensions):
        places = (place - (0 if keeps else sum(axis < place for axis in axes)) for place in found.dimensions)
        return Fit(rows, (Rows(tuple(places)),), (left,))
    return Fit(rows, (None,), (left,)) if is_sum and axes.issuperset(found.dimensions) else None


def _reduced_to(op: tf.Operation, result: Rows, known: KnownSizes) -> Fit | None:
    """Of a reduction along other axes than those of the rows of its result."""
    axes, rank = known.axes(op.inputs[1]), len(known.of(op.inputs[0]))
    if axes is None:
        return None
    gone = {axis % max(rank, 1) for axis in axes}
    left = [place for place in range(rank) if keeps_axes(op) or place not in gone]
    places = tuple(left[place] for place in result.dimensions)
    return Fit({0: Rows(places)}, (result,)) if gone.isdisjoint(places) else None


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
    if any(found != leading(1) for found in rows.values()):
        return None
    inputs, outputs = {0: leading(1), 1: leading(1)}, (leading(1),) * len(op.outputs)
    return Fit(inputs, outputs, ((None,), known.of(op.inputs[0]))[: len(op.outputs)])


def _dropped(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    """Of a dropout and its gradient, whose bits nothing else reads; a tile draws its numbers where it begins."""
    number = 0 if op.type == DROPOUT else 1
    found, sizes = rows.get(number), known.of(op.inputs[number])
    if found is None or not _may_draw(op.inputs[number], found, known):
        return None
    if op.type == DROPOUT:
        return Fit({0: found}, (found, None), (sizes, ()))
    return Fit({1: found}, (found,), (sizes,)) if op.inputs[0].op.type == DROPOUT else None


def _may_draw(tensor: tf.Tensor, rows: Rows, known: KnownSizes) -> bool:
    """Whether the random numbers of a tile stand together, and begin where some are drawn."""
    numbers = product(rows.others(known.of(tensor))) if rows == leading(len(rows.dimensions)) else None
    return numbers is not None and numbers % 4 == 0 and tensor.dtype in _DRAWN_BY_FOURS


def _one_hot(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    if set(rows) != {0} or op.get_attr("axis") not in (-1, op.inputs[0].shape.rank):
        return None
    return Fit(rows, (rows[0],))


def _multiplied(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    """Of a product of matrices: rows of either factor stay rows; where both have them along what is summed, a sum.

    Rows of many products are those of both factors.
    """
    terms = letters_of(op)
    if terms is None:
        return None
    *factors, result = terms
    found = {tuple(factors[n][place] for place in own.dimensions) for n, own in rows.items()}
    if len(found) != 1:
        return None
    (letters,) = found
    have = [n for n in (0, 1) if set(letters) <= set(factors[n])]
    if any(n not in have and not set(letters).isdisjoint(factors[n]) for n in (0, 1)):
        return None
    inputs = {n: _rows_at(letters, factors[n]) for n in have}
    made = (sizes_made(terms, [known.of(tensor) for tensor in op.inputs]),)
    if set(letters) <= set(result):
        return Fit(inputs, (_rows_at(letters, result),), made)
    is_sum = len(have) == 2 and set(letters).isdisjoint(result)
    return Fit(inputs, (None,), made) if is_sum else None


def _multiplied_to(op: tf.Operation, result: Rows) -> Fit | None:
    """Of a product: each factor has the rows of the result, or is read whole."""
    terms = letters_of(op)
    if terms is None:
        return None
    letters = tuple(terms[-1][place] for place in result.dimensions)
    have = [n for n in (0, 1) if set(letters) <= set(terms[n])]
    if not have or any(n not in have and not set(letters).isdisjoint(terms[n]) for n in (0, 1)):
        return None
    return Fit({n: _rows_at(letters, terms[n]) for n in have}, (result,))


def _rows_at(letters: Sequence[str], term: str) -> Rows:
    return Rows(tuple(term.index(letter) for letter in letters))


def _passed(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    """Of what passes tensors on; those of the same sizes have the same rows."""
    found = set(rows.values())
    sizes = {known.of(op.inputs[number]) for number in rows}
    if len(found) != 1 or len(sizes) != 1:
        return None
    (each,) = found
    alike = [number for number, tensor in enumerate(op.inputs) if known.of(tensor) in sizes]
    outputs = tuple(each if number in alike else None for number in range(len(op.outputs)))
    return Fit(dict.fromkeys(alike, each), outputs, tuple(known.of(tensor) for tensor in op.inputs))


def _reshaped(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    found = viewed(rows[0], known.of(op.inputs[0]), known.of(op.outputs[0]))
    return None if found is None else Fit(rows, (found,))


def _transposed(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    order = known.order(op.inputs[1])
    if order is None:
        return None
    places = tuple(order.index(place) for place in rows[0].dimensions)
    own = known.of(op.inputs[0])
    return Fit(rows, (Rows(places),), (tuple(own[place] for place in order),))


def _picked(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    """Of values picked along the last dimension, from each row its own."""
    count, found = picks_of_rows(op), rows[0]
    if count is None or found.last >= count:
        return None
    return Fit({0: found, 1: found}, (found,), (known.of(op.inputs[1]),))


def _sliced(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    own, found = known.of(op.inputs[0]), rows[0]
    if not drops_last(op, op.inputs[0]) or len(own) - 1 in found.dimensions:
        return None
    return Fit(rows, (found,), (own[:-1],))


def _repeated(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    shift = len(known.of(op.outputs[0])) - len(known.of(op.inputs[0]))
    return Fit(rows, (rows[0].moved(shift),))


def _joined(op: tf.Operation, rows: Mapping[int, Rows], known: KnownSizes) -> Fit | None:
    parts = range(len(op.inputs) - 1)
    axes = _axes(op.inputs[len(parts)], len(known.of(op.outputs[0])), known)
    found = set(rows.values())
    if len(found) != 1 or not axes.isdisjoint(next(iter(found)).dimensions):
        return None
    (each,) = found
    return Fit(dict.fromkeys(parts, each), (each,))


_Rule = Callable[[tf.Operation, Mapping[int, Rows], KnownSizes], Fit | None]

_BY_NAME: Mapping[str, _Rule] = {
    DROPOUT: _dropped,
    MASKED: _dropped,
    "ConcatV2": _joined,
    GATHER: _picked,
    "InTopKV2": _by_samples,
    "OneHot": _one_hot,
    SLICE: _sliced,
    "TopKV2": _along_last,
}
_BY_KIND: Mapping[str, _Rule] = {
    LOSS: _by_samples,
    MATRIX_PRODUCT: _multiplied,
    MOVE: _transposed,
    REDUCTION: _reduced,
    REPEAT: _repeated,
    SUMMATION: _reduced,
    VIEW: _reshaped,
}
_BY_ROWS: Mapping[str, _Rule] = {
    ALL_BUT_LAST: _along_last,
    EVERY_AXIS: _elementwise,
}
# Rules of operations whose rows may be those of any input; of the others they are those of the first.
_ANY_INPUT = (_by_samples, _dropped, _elementwise, _joined, _multiplied, _passed)


def _rule_of(op: tf.Operation) -> _Rule | None:
    row = about(op.type)
    if row.is_alias:
        return _passed
    return _BY_NAME.get(op.type) or _BY_KIND.get(row.kind) or _BY_ROWS.get(row.rows)
