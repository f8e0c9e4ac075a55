"""Sizes that a graph says without being run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.operations import EVERY_AXIS, REDUCTION, SUMMATION, about
from tf_comptrain.graph.tensors import base_of

# The sizes of a tensor; None for each that only a run says.
Sizes = tuple[int | None, ...]

# What dimensions are taken to have that only a run says: one number all of them, or each another.
# What comes of both is known.
_TAKEN = ((7919,) * 8, (11, 1_009, 20_011, 300_007, 13, 1_013, 20_021, 300_017))
# Operations whose second operand says the sizes of their result.
_TOLD = ("BroadcastTo", "Reshape", "Comptrain>Decompress")
_MOST_SIZES = 16  # in a vector of them


class KnownSizes:
    """What a graph says of the sizes of its tensors, once for each.

    TensorFlow's own shapes do not follow what a Reshape is told by operations on shapes.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Sizes] = {}
        self._values_of: dict[Any, Sizes | None] = {}

    def of(self, tensor: tf.Tensor) -> Sizes:
        """The sizes of a tensor whose number of dimensions is known.

        Raises:
          ValueError: It is not.
        """
        if tensor.ref() not in self._known:
            for before in self._made_before(tensor):
                self._known[before.ref()] = self._find(before)
        return self._known[tensor.ref()]

    def _made_before(self, tensor: tf.Tensor) -> Iterator[tf.Tensor]:
        """The tensor behind those that it may have its sizes of: asked in turn they would ask each other too deeply."""
        row = [tensor]
        while row[-1].op.inputs:
            before = row[-1].op.inputs[0]
            if before.ref() in self._known or before.shape.rank is None or None not in before.shape[1:]:
                break
            row.append(before)
        return reversed(row)

    def note(self, tensor: tf.Tensor, sizes: Sizes) -> None:
        """Notes what is known from elsewhere."""
        before = self.of(tensor)
        now = self._known[tensor.ref()] = merged(before, sizes)
        if now != before:
            self._values_of.clear()

    def axes(self, operand: tf.Tensor) -> set[int] | None:
        """The axes along which an operation reduces; None where only a run says it."""
        if operand.op.type != "BroadcastGradientArgs":
            axes = self._values(operand)
            return None if axes is None or None in axes else set(axes)  # type: ignore[arg-type]
        first, second = (self._values(shape) for shape in operand.op.inputs)
        if first is None or second is None:
            return None
        rank = max(len(first), len(second))
        shapes = [(1,) * (rank - len(shape)) + shape for shape in (first, second)]
        own, other = shapes if operand.value_index == 0 else shapes[::-1]
        return {axis for axis in range(rank) if own[axis] == 1 != other[axis]}

    def order(self, operand: tf.Tensor) -> tuple[int, ...] | None:
        """The order into which an operation puts axes; None where only a run says it."""
        order = self._values(operand)
        return None if order is None or None in order else order  # type: ignore[return-value]

    def rank(self, tensor: tf.Tensor) -> int | None:
        """The number of dimensions; None where only a run says it."""
        if tensor.shape.rank is not None:
            return tensor.shape.rank
        try:
            return len(self.of(tensor))
        except ValueError:
            return None

    def _find(self, tensor: tf.Tensor) -> Sizes:
        source = base_of(tensor)
        if source is not tensor and self.rank(source) is not None:
            known = self.of(source)
            return known if tensor.shape.rank is None else merged(tuple(tensor.shape), known)
        op = tensor.op
        if tensor.shape.rank is None and about(op.type).kind == SUMMATION:
            return self._summed(op)
        sizes: Sizes = tuple(tensor.shape)
        # Of the first dimension, which is that of samples, operands say no more.
        if None not in sizes[1:]:
            return sizes
        if op.type in _TOLD:
            return self._told(op, sizes)
        if any(self.rank(each) is None for each in op.inputs):
            return sizes
        if about(op.type).rows == EVERY_AXIS and len(op.outputs) == 1:
            return merged(sizes, broadcast([self.of(operand) for operand in op.inputs]))
        if about(op.type).kind in (REDUCTION, SUMMATION) and len(op.inputs) == 2:
            axes = self.axes(op.inputs[1])
            return (
                sizes if axes is None else merged(sizes, reduced(self.of(op.inputs[0]), axes, keeps_axes(op)))
            )
        return sizes

    def _told(self, op: tf.Operation, sizes: Sizes) -> Sizes:
        told = self._values(op.inputs[1])
        if told is None or len(told) != len(sizes):
            return sizes
        return merged(sizes, tuple(None if size is None or size < 0 else size for size in told))

    def _summed(self, op: tf.Operation) -> Sizes:
        """The sizes of a sum along axes that TensorFlow does not know, as those of a broadcast's gradient."""
        axes = self.axes(op.inputs[1])
        if axes is None:
            raise ValueError("only a run says the axes")
        return reduced(self.of(op.inputs[0]), axes, keeps_axes(op))

    def _values(self, tensor: tf.Tensor) -> tuple[int | None, ...] | None:
        """The values of a small tensor of sizes, None for each that only a run says; None where all are."""
        if tensor.ref() not in self._values_of:
            self._values_of[tensor.ref()] = self._find_values(tensor)
        return self._values_of[tensor.ref()]

    def _find_values(self, tensor: tf.Tensor) -> tuple[int | None, ...] | None:
        found = []
        for taken in _TAKEN:
            values = self._run(tensor, itertools.cycle(taken))
            if values is None:
                return None
            found.append(np.ravel(values).tolist())
        return tuple(a if a == b else None for a, b in zip(*found)) if len({*map(len, found)}) == 1 else None

    def _run(self, tensor: tf.Tensor, taken: Iterator[int]) -> Any:
        """The values of a small tensor of whole numbers, with sizes that are not known taken from an iterator."""
        constant = tf.get_static_value(tensor)
        if constant is not None:
            return constant
        op, shape = base_of(tensor).op, tensor.shape
        if not tensor.dtype.is_integer or shape.rank is None or (shape.num_elements() or 0) > _MOST_SIZES:
            return None
        if op.type == "Shape" and self.rank(op.inputs[0]) is not None:
            sizes = (next(taken) if size is None else size for size in self.of(op.inputs[0]))
            return np.array(list(sizes), tensor.dtype.as_numpy_dtype)
        operands = [self._run(operand, taken) for operand in op.inputs]
        if not operands or any(operand is None for operand in operands) or op.op_def.is_stateful:
            return None
        try:
            return _keras.run_eagerly(op, operands)[tensor.value_index].numpy()
        except tf.errors.OpError:  # the sizes that were taken do not go together
            return None


def keeps_axes(op: tf.Operation) -> bool:
    """Whether a reduction leaves one value along its axes, and not none."""
    return "keep_dims" in op.node_def.attr and op.get_attr("keep_dims")


def merged(some: Sizes, others: Sizes) -> Sizes:
    """The sizes that either says."""
    return tuple(other if size is None else size for size, other in zip(some, others))


def broadcast(operands: Sequence[Sizes]) -> Sizes:
    """The sizes of what operands are broadcast to, as far as theirs say it."""
    rank = max(map(len, operands))
    along = zip(*((1,) * (rank - len(sizes)) + sizes for sizes in operands))
    return tuple(
        next((s for s in sizes if s not in (None, 1)), None if None in sizes else 1) for sizes in along
    )


def reduced(sizes: Sizes, axes: Collection[int], keeps: bool) -> Sizes:
    """The sizes of what is left along the other axes, and of one value along each of these if it keeps them."""
    gone = {axis % max(len(sizes), 1) for axis in axes}
    return tuple(
        1 if place in gone else size for place, size in enumerate(sizes) if keeps or place not in gone
    )


def product(sizes: Sizes) -> int | None:
    """The number of values; None where only a run says it."""
    return None if None in sizes else math.prod(sizes)  # type: ignore[arg-type]


def of_sample(sizes: Sizes) -> int:
    """The number of values, for one sample where only a run says how many there are."""
    return math.prod(1 if size is None else size for size in sizes)
