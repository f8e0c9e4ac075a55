"""Sums over all rows, added up tile after tile: a large one in parts, so that what a tile adds is small beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.operations import MATRIX_PRODUCT, about
from tf_comptrain.graph.tiles.sizes import KnownSizes, product

# Of 16 bits each a sum of many tiles would lose what a tile adds.
_ADDED_UP_IN = {tf.bfloat16: tf.float32, tf.float16: tf.float32}


class Sum(NamedTuple):
    """How one sum is added up.

    Attributes:
      tensor: The sum, in the step.
      sizes: Of it.
      axis: Along which it is cut.
      cuts: Sizes of its parts along that.
    """

    tensor: tf.Tensor
    sizes: tuple[int, ...]
    axis: int
    cuts: tuple[int, ...]

    def zeros(self) -> list[tf.Tensor]:
        """What its parts begin with."""
        shapes = ([*self.sizes[: self.axis], size, *self.sizes[self.axis + 1 :]] for size in self.cuts)
        dtype = _ADDED_UP_IN.get(self.tensor.dtype, self.tensor.dtype)
        return [tf.zeros(shape if self.sizes else (), dtype) for shape in shapes]

    def added(self, parts: Sequence[tf.Tensor], of_tile: Callable[[tf.Tensor], tf.Tensor]) -> list[tf.Tensor]:
        """The parts with what a tile adds.

        Args:
          parts: So far.
          of_tile: Returns what stands for a tensor of the step in this tile.
        """
        if len(parts) == 1:
            return [parts[0] + tf.cast(of_tile(self.tensor), parts[0].dtype)]
        op = self.tensor.op
        operands = [of_tile(operand) for operand in op.inputs]
        flags = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
        along = 1 - self.axis if op.get_attr(flags[self.axis]) else self.axis
        added = []
        for total, cut in zip(parts, tf.split(operands[self.axis], self.cuts, along)):
            factors = [cut if number == self.axis else operand for number, operand in enumerate(operands)]
            (made,) = _keras.run_again(op, factors, "tile", shaped=False)
            # One part after the other: its own tensor is there only until it is added.
            added.append(total + tf.cast(made, total.dtype))
        return added

    def joined(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """The sum, of its parts in the end."""
        cast = [tf.cast(part, self.tensor.dtype) for part in parts]
        return cast[0] if len(cast) == 1 else tf.concat(cast, self.axis)


def sum_of(tensor: tf.Tensor, known: KnownSizes, part_bytes: int) -> Sum:
    """How a sum over all rows is added up.

    Args:
      tensor: The sum; its sizes are known.
      known: Says them.
      part_bytes: What a part of a product of matrices takes, about.
    """
    sizes: Any = known.of(tensor)
    axis, cuts = 0, (sizes[0] if sizes else 1,)
    count = -(-(product(sizes) or 0) * tensor.dtype.size // part_bytes)
    if about(tensor.op.type).kind == MATRIX_PRODUCT and count > 1:
        axis = int(sizes[1] > sizes[0])
        size = -(-sizes[axis] // count)
        cuts = (*[size] * (sizes[axis] // size), *([sizes[axis] % size] if sizes[axis] % size else []))
    return Sum(tensor, sizes, axis, cuts)
