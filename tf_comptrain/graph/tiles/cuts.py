"""Slices of rows, as of logits whose last position has no label: tiles have all rows, and blank those left out."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain.graph.tiles.picks import SLICE

SLICE_GRADIENT = "StridedSliceGrad"
_WHOLE = 0, 0  # is left out before and after


class RowCut(NamedTuple):
    """Which of all rows a tensor has.

    Attributes:
      number: Of the dimension that is cut, among those of all rows.
      before: Along that, how many are left out before.
      after: And after.
    """

    number: int
    before: int
    after: int


def cut_of(op: tf.Operation, sizes: tuple[int | None, ...], dimensions: tuple[int, ...]) -> RowCut | None:
    """What a slice, or the gradient of one, leaves out along one dimension of rows; None where it is another slice.

    Args:
      op: The slice, or its gradient.
      sizes: Of what is sliced, or of the gradient of that.
      dimensions: Of its rows.
    """
    begin, end, steps = (tf.get_static_value(operand) for operand in op.inputs[1:4])
    masks = {
        name: op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    if begin is None or end is None or steps is None or masks["new_axis"] or masks["shrink_axis"]:
        return None
    left_out = [_WHOLE] * len(sizes)
    for entry, step in enumerate(steps):
        if masks["ellipsis"] >> entry & 1:
            continue
        is_after = masks["ellipsis"] and entry > masks["ellipsis"].bit_length() - 1
        place = len(sizes) - len(steps) + entry if is_after else entry
        found = _left_out(
            0 if masks["begin"] >> entry & 1 else int(begin[entry]),
            None if masks["end"] >> entry & 1 else int(end[entry]),
            sizes[place],
        )
        if step != 1 or found is None:
            return None
        left_out[place] = found
    cut = [place for place, found in enumerate(left_out) if found != _WHOLE]
    if len(cut) != 1 or cut[0] not in dimensions:
        return None
    return RowCut(dimensions.index(cut[0]), *left_out[cut[0]])


def _left_out(begin: int, end: int | None, size: int | None) -> tuple[int, int] | None:
    """How many are left out before and after; None where that is not known, or all are."""
    if begin < 0 or end == 0 or end is not None and end > 0 and size is None:
        return None
    after = 0
    if end is not None:
        after = max(size - end, 0) if end > 0 else -end  # type: ignore[operator]
    return None if size is not None and begin + after >= size else (begin, after)


class Kept(NamedTuple):
    """The rows that a cut leaves, of all rows in the order in which they stand.

    Attributes:
      count: How many these are.
      are_there: Of all rows, whether they are among them.
      places: For each of all rows: its place among these; of one that is left out that of a neighbour.
      rows: For each of these: its place among all.
    """

    count: Any
    are_there: tf.Tensor
    places: tf.Tensor
    rows: tf.Tensor


def kept_rows(cut: RowCut, sizes: list[Any]) -> Kept:
    """The rows that a cut leaves.

    Args:
      cut: The cut.
      sizes: Of the dimensions of all rows.
    """
    outer, inner, size = _product(sizes[: cut.number]), _product(sizes[cut.number + 1 :]), sizes[cut.number]
    left = size - cut.before - cut.after
    count = outer * left * inner
    every, some = tf.range(outer * size * inner), tf.range(count)
    along = every // inner % size - cut.before
    place = tf.clip_by_value(along, 0, left - 1)
    return Kept(
        count,
        (along >= 0) & (along < left),
        (every // (inner * size) * left + place) * inner + every % inner,
        (some // (inner * left) * size + some // inner % left + cut.before) * inner + some % inner,
    )


def _product(sizes: list[Any]) -> Any:
    return functools.reduce(operator.mul, sizes, 1)


def whole_and_part(op: tf.Operation) -> tuple[tf.Tensor, tf.Tensor]:
    """What is sliced and the slice of it, or the gradients of these."""
    return (op.inputs[0], op.outputs[0]) if op.type == SLICE else (op.outputs[0], op.inputs[-1])


def slices_rows(op: tf.Operation) -> bool:
    """Whether an operation may be a slice of rows, or the gradient of one."""
    return op.type in (SLICE, SLICE_GRADIENT)
