"""Rows of a restored tensor that its errors have made longer, where what reads it divides by their lengths.

An error is one of a channel's scale, over all rows. A root mean square normalization multiplies it with 1 / the length
of the row, and its gradient has it squared: rows that are much shorter than the others would have gradients without a
bound. The true length is known from the forward pass. What is longer is mostly error, and the more so the less of it is
left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_comptrain.graph.cofactors import is_square
from tf_comptrain.graph.tensors import element_count, views_of

_ENOUGH, _PLACES = 1024, 4  # values of a row to measure it by, places of an axis: at least
_MOST = 4.0  # times its true sum of squares, that a row may have as it is


class RowSquares(NamedTuple):
    """What a forward pass knows of the rows of a tensor.

    Attributes:
      view: The tensor as it is squared, in any shape.
      centre: What is subtracted before; None: nothing.
      reduction: The mean or sum over a row.
    """

    view: tf.Tensor
    centre: tf.Tensor | None
    reduction: tf.Operation


def squares_of_rows(tensor: tf.Tensor, is_late: Callable[[tf.Operation], bool]) -> RowSquares | None:
    """The mean or sum of squares of a tensor's rows that its forward pass makes; None where there is none.

    Args:
      tensor: One that is held.
      is_late: Whether an operation is one of the backward pass.
    """
    for view in views_of(tensor):
        for square, centre in _squares(view, is_late):
            for reduction in square.outputs[0].consumers():
                if not is_late(reduction) and _is_of_rows(reduction):
                    return RowSquares(view, centre, reduction)
    return None


def _squares(
    view: tf.Tensor, is_late: Callable[[tf.Operation], bool]
) -> Iterator[tuple[tf.Operation, tf.Tensor | None]]:
    """(What squares a tensor in the forward pass, what is subtracted from it before.)"""
    for op in view.consumers():
        centre = _centre(op, view)
        if is_late(op):
            continue
        if centre is not None and op.type == "Sub":
            yield from ((each, centre) for each in op.outputs[0].consumers() if is_square(each, (2.0,)))
        elif centre is not None or is_square(op, (2.0,)):
            yield op, centre


def shortened(restored: tf.Tensor, rows: RowSquares, xla: bool) -> tf.Tensor:
    """A restored tensor, those of its rows less that are longer than they were.

    Args:
      restored: The tensor.
      rows: What the forward pass knows of them.
      xla: Whether XLA compiles the step, which makes one kernel of it with what reads it.
    """
    reduction, shape = rows.reduction, rows.view.shape
    axes = reduction.inputs[1]
    true = tf.cast(reduction.outputs[0], tf.float32)
    if not reduction.get_attr("keep_dims"):
        true = tf.reshape(true, _kept(tf.shape(rows.view), tf.get_static_value(axes)))
    is_same = shape.rank == restored.shape.rank and shape[1:] == restored.shape[1:]
    x = tf.cast(restored if is_same else tf.reshape(restored, tf.shape(rows.view)), tf.float32)
    centre = None if rows.centre is None else tf.cast(rows.centre, tf.float32)
    some = _some_of_rows(x, rows)
    square = tf.square(some if centre is None else some - centre)
    reduce = tf.raw_ops.Mean if reduction.type == "Mean" else tf.raw_ops.Sum
    found = reduce(input=square, axis=axes, keep_dims=True)

    def shorter() -> tf.Tensor:
        left = tf.math.divide_no_nan(tf.minimum(found, _MOST * true), found)
        made = tf.cast(x * left if centre is None else x * left + centre * (1.0 - left), restored.dtype)
        return made if is_same else tf.reshape(made, tf.shape(restored))

    if xla or some is x:
        made = shorter()
    else:
        made = tf.cond(tf.reduce_any(found > _MOST * true), shorter, lambda: tf.identity(restored))
    made.set_shape(restored.shape)
    return made


def _some_of_rows(x: tf.Tensor, rows: RowSquares) -> tf.Tensor:
    """Enough of rows to tell how long they are: of long ones what is at every n-th place of an axis."""
    rank = x.shape.rank
    axes = [int(axis) % rank for axis in np.ravel(tf.get_static_value(rows.reduction.inputs[1]))]
    sizes = {axis: x.shape[axis] or 1 for axis in axes}
    longest = max(axes, key=sizes.__getitem__)
    step = min(math.prod(sizes.values()) // _ENOUGH, sizes[longest] // _PLACES)
    if step < 2 or rows.reduction.type != "Mean" or not _is_one_along(rows.centre, longest - rank):
        return x
    places: list[slice] = [slice(None)] * rank
    places[longest] = slice(None, None, step)
    return x[tuple(places)]


def _is_one_along(centre: tf.Tensor | None, axis: int) -> bool:
    """Whether all places along an axis, counted from the last one, have the same centre."""
    return (
        centre is None
        or centre.shape.rank is not None
        and (centre.shape.rank < -axis or centre.shape[axis] == 1)
    )


def _centre(op: tf.Operation, view: tf.Tensor) -> tf.Tensor | None:
    """What an operation subtracts from a tensor that is squared then: fewer values, and it makes no more than those."""
    if op.type not in ("SquaredDifference", "Sub"):
        return None
    centre = op.inputs[1] if op.inputs[0] is view else op.inputs[0]
    size = element_count(view)
    return centre if element_count(centre) < size == element_count(op.outputs[0]) else None


def _is_of_rows(op: tf.Operation) -> bool:
    """Whether an operation is a mean or sum along axes that are not the batch's."""
    if op.type not in ("Mean", "Sum"):
        return False
    axes = tf.get_static_value(op.inputs[1])
    rank = op.inputs[0].shape.rank
    if axes is None or rank is None or not np.size(axes):
        return False
    return 0 not in {int(axis) % rank for axis in np.ravel(axes)}


def _kept(shape: tf.Tensor, axes: np.ndarray) -> tf.Tensor:
    """The shape with 1 at the given axes."""
    rank = shape.shape[0]
    places = {int(axis) % rank for axis in np.ravel(axes)}
    return tf.stack([1 if k in places else shape[k] for k in range(rank)])
