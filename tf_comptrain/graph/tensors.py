"""Sizes of a graph's tensors, and what stands behind one."""

from __future__ import annotations

import math

import tensorflow as tf

from tf_comptrain.graph.operations import PASSED, about

_UNKNOWN_SIZE = 32  # of a dimension that is known only at run time: the batch, as a rule
# Below this a stream's header and directory outweigh what they could save, and few values average an error out.
_MIN_ELEMENTS_PER_SAMPLE = 64
_MIN_ELEMENTS = 1024


def sample_elements(tensor: tf.Tensor) -> int | None:
    """Elements for a sample of the batch, which is the first dimension; None where the graph does not say it.

    A product of a sequence with a weight is that of a matrix whose rows are the steps of all samples: what it makes of
    a sample follows from what that has before the view.
    """
    op = tensor.op
    if about(op.type).is_move:
        before = sample_elements(op.inputs[0])
        if before is not None or op.type == "Reshape":
            return before
    if op.type == "MatMul" and is_moved(base_of(op.inputs[0])) and not op.get_attr("transpose_b"):
        before, weight = sample_elements(base_of(op.inputs[0])), op.inputs[1].shape
        if before is None or op.get_attr("transpose_a") or not weight.is_fully_defined():
            return None
        return before // weight[0] * weight[1]
    if tensor.shape.rank is None or None in tensor.shape[1:]:
        return None
    return math.prod(tensor.shape[1:])


def element_count(tensor: tf.Tensor) -> int:
    """Elements, where dimensions that are not known count as a usual batch."""
    if tensor.shape.rank is None:
        return _UNKNOWN_SIZE
    if not tensor.shape.is_fully_defined() and (of_sample := sample_elements(tensor)) is not None:
        return _UNKNOWN_SIZE * of_sample
    return math.prod(size if size is not None else _UNKNOWN_SIZE for size in tensor.shape)


def plain_bytes(tensor: tf.Tensor) -> int:
    return element_count(tensor) * (tensor.dtype.size or 0)


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
        per_sample = math.prod(size if size is not None else _MIN_ELEMENTS_PER_SAMPLE for size in shape[1:])
    return per_sample < _MIN_ELEMENTS_PER_SAMPLE or element_count(tensor) < _MIN_ELEMENTS


def readers_of(tensor: tf.Tensor) -> list[tuple[tf.Operation, int]]:
    """The operations that read a tensor, and at which of their inputs."""
    return [
        (op, index) for op in tensor.consumers() for index, read in enumerate(op.inputs) if read is tensor
    ]
