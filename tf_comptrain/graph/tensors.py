"""Sizes of a graph's tensors, and what stands behind one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_comptrain.graph.operations import (
    ALL_BUT_LAST,
    BLANK,
    EVERY_AXIS,
    FIRST_AXIS,
    LINEAR,
    LOSS,
    PASSED,
    REPEAT,
    ROWS_OF_FIRST,
    about,
)
from tf_comptrain.storage import MIN_ELEMENTS_PER_SAMPLE, is_large

# Of operations that make a matrix row by row of another one, which is their first that has as many rows.
_ROW_BY_ROW = (EVERY_AXIS, ALL_BUT_LAST, ROWS_OF_FIRST, FIRST_AXIS)

USUAL_BATCH = 32  # size of a dimension that is known only at run time
# A tensor of fewer elements is small too: few values average an error out.
_MIN_ELEMENTS = 1024


def sample_elements(tensor: tf.Tensor) -> int | None:
    """Elements for a sample of the batch, which is the first dimension; None where the graph does not say it.

    A sequence meets a weight, and a loss, as a matrix whose rows are the steps of all samples: what is made of it for
    a sample follows from what that has before the view.
    """
    op = tensor.op
    if about(op.type).is_move:
        before = sample_elements(op.inputs[0])
        if before is not None or op.type == "Reshape":
            return before
    if tensor.shape.rank is None or None in tensor.shape[1:]:
        return None
    rows = _sample_rows(tensor) if tensor.shape.rank == 2 and about(op.type).rows in _ROW_BY_ROW else 1
    return None if rows is None else rows * math.prod(tensor.shape[1:])


def _sample_rows(matrix: tf.Tensor) -> int | None:
    """Rows of a matrix for a sample of the batch: the steps of a sequence, where that was reshaped into it."""
    columns = None
    while about(matrix.op.type).rows in _ROW_BY_ROW:
        op = matrix.op
        if op.type == "MatMul":
            if op.get_attr("transpose_a"):
                return None
            columns = op.inputs[1].shape[1 if op.get_attr("transpose_b") else 0]
        matrices = [operand for operand in op.inputs if operand.shape.rank == 2]
        # A number of rows that the graph says is that of a weight, or of a batch of which it says all.
        unknown = [operand for operand in matrices if operand.shape[0] is None]
        first = matrices[:1] if op.type == "MatMul" else unknown or matrices
        if not first:
            return 1
        matrix = first[0]
    if not about(matrix.op.type).is_move:
        return 1
    elements = sample_elements(matrix)
    columns = matrix.shape[1] if matrix.shape.rank == 2 and matrix.shape[1] else columns
    return None if elements is None or not columns else elements // columns


def element_count(tensor: tf.Tensor) -> int:
    """Elements, where dimensions that are not known count as a usual batch."""
    if tensor.shape.rank is None:
        return USUAL_BATCH
    if not tensor.shape.is_fully_defined() and (of_sample := sample_elements(tensor)) is not None:
        return USUAL_BATCH * of_sample
    return math.prod(size if size is not None else USUAL_BATCH for size in tensor.shape)


def plain_bytes(tensor: tf.Tensor) -> int:
    return element_count(tensor) * (tensor.dtype.size or 0)


def values_of(gradient: Any) -> Any:
    """A gradient as one tensor: of a sparse one its values."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def base_of(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor behind operations that pass it on."""
    while (row := about(tensor.op.type)).is_alias or row.kind == PASSED and tensor.value_index == 0:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def behind_views(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor that has the values, in the shape in which they were made: views share its buffer."""
    while about((tensor := base_of(tensor)).op.type).is_view:
        tensor = tensor.op.inputs[0]
    return tensor


def views_of(tensor: tf.Tensor, in_any_order: bool = False) -> Iterator[tf.Tensor]:
    """A tensor, and what operations pass on of it, in whatever shape and type; in another order of its values too."""
    waiting, seen = [tensor], set()
    while waiting:
        view = waiting.pop()
        if view.ref() in seen:
            continue
        seen.add(view.ref())
        yield view
        for op in view.consumers():
            row = about(op.type)
            if row.is_alias:
                waiting += [op.outputs[i] for i, given in enumerate(op.inputs) if given is view]
            is_passed = row.kind == PASSED or row.is_view or op.type == "Cast" or in_any_order and row.is_move
            if is_passed and op.inputs[0] is view:
                waiting.append(op.outputs[0])


def is_broadcast(tensor: tf.Tensor) -> bool:
    """Whether elementwise operations make a tensor of smaller ones alone."""
    waiting, seen = [tensor], set()
    while waiting:
        current = base_of(waiting.pop())
        row = about(current.op.type)
        if current.ref() in seen or row.kind in (REPEAT, BLANK):
            continue
        if not row.is_elementwise:
            return False
        seen.add(current.ref())
        waiting += [part for part in current.op.inputs if element_count(part) >= element_count(current)]
    return True


def is_last(tensor: tf.Tensor, made_late: Callable[[tf.Operation], bool]) -> bool:
    """Whether the forward pass makes losses and products of a tensor alone, and nothing that is larger.

    Means and sums that normalize have to have the error of what they are of, arguments of functions a small one.
    """
    waiting, seen = [tensor], {tensor.ref()}
    while waiting:
        for op in waiting.pop().consumers():
            row = about(op.type)
            if made_late(op) or row.is_free:
                continue
            is_end = row.kind == LOSS or row.is_product
            if (
                not is_end
                and row.again != LINEAR
                or any(element_count(made) > element_count(tensor) for made in op.outputs)
            ):
                return False
            if not is_end:
                waiting += [made for made in op.outputs if made.ref() not in seen]
                seen |= {made.ref() for made in op.outputs}
    return True


def is_moved(tensor: tf.Tensor) -> bool:
    """Whether a tensor is another one in whatever shape and order."""
    return about(tensor.op.type).is_move


def is_small(tensor: tf.Tensor) -> bool:
    """Whether a tensor is held as it is for its size."""
    shape = tensor.shape
    if shape.rank is None or shape.rank < 2:
        return True
    per_sample = sample_elements(tensor)
    if per_sample is None:
        per_sample = math.prod(size if size is not None else MIN_ELEMENTS_PER_SAMPLE for size in shape[1:])
    return not is_large(per_sample, shape.num_elements()) or element_count(tensor) < _MIN_ELEMENTS


def readers_of(tensor: tf.Tensor) -> list[tuple[tf.Operation, int]]:
    """The operations that read a tensor, and at which of their inputs."""
    return [
        (op, index) for op in tensor.consumers() for index, read in enumerate(op.inputs) if read is tensor
    ]
