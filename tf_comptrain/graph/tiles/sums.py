"""Sums over all rows, added up tile after tile, and a large one in parts: what a tile adds is small then.

The largest of what is never below zero is found the same way: it begins with zero too, and so are rows that are
not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.operations import MATRIX_PRODUCT, about
from tf_comptrain.graph.tiles.sizes import KnownSizes, Sizes, product

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
    sizes: Sizes
    axis: int
    cuts: Sizes

    def zeros(self, samples: tf.Tensor | None, zero: tf.Tensor) -> list[tf.Tensor]:
        """What its parts begin with: a zero in all places; `samples` are as many as only a run says."""
        before, after = self.sizes[: self.axis], self.sizes[self.axis + 1 :]
        shapes = ([samples if n is None else n for n in (*before, cut, *after)] for cut in self.cuts)
        dtype = _ADDED_UP_IN.get(self.tensor.dtype, self.tensor.dtype)
        return [tf.fill(shape if self.sizes else [], tf.cast(zero, dtype)) for shape in shapes]

    def parts(self, operands: Sequence[tf.Tensor]) -> Iterator[tf.Tensor]:
        """What a tile adds to each part, made of these operands."""
        for factors in self._cut(operands):
            yield _keras.run_again(self.tensor.op, factors, "tile", shaped=False)[0]

    def _cut(self, operands: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        """The operands of each part."""
        if len(self.cuts) == 1:
            return [list(operands)]
        op = self.tensor.op
        flags = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
        along = 1 - self.axis if op.get_attr(flags[self.axis]) else self.axis
        cuts = tf.split(operands[self.axis], self.cuts, along)
        return [[cut if n == self.axis else operand for n, operand in enumerate(operands)] for cut in cuts]

    def with_parts(self, totals: Sequence[tf.Tensor], parts: Iterable[tf.Tensor]) -> list[tf.Tensor]:
        """With what a tile makes: one part after the other, so that each is there only until it is added."""
        add = tf.maximum if self.tensor.op.type == "Max" else tf.add
        return [add(total, tf.cast(part, total.dtype)) for total, part in zip(totals, parts)]

    def joined(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """The sum, of its parts in the end."""
        cast = [tf.cast(part, self.tensor.dtype) for part in parts]
        return cast[0] if len(cast) == 1 else tf.concat(cast, self.axis)


def sum_of(tensor: tf.Tensor, known: KnownSizes, part_bytes: int | None) -> Sum:
    """How a sum over all rows is added up.

    Args:
      tensor: The sum; its sizes are known.
      known: Says them.
      part_bytes: What a part of a product of matrices takes, about; None: all of it is one.
    """
    sizes: Any = known.of(tensor)
    axis, cuts = 0, (sizes[0] if sizes else 1,)
    count = 1 if part_bytes is None else -(-(product(sizes) or 0) * tensor.dtype.size // part_bytes)
    if about(tensor.op.type).kind == MATRIX_PRODUCT and len(sizes) == 2 and count > 1:
        axis = int(sizes[1] > sizes[0])
        size = -(-sizes[axis] // count)
        cuts = (*[size] * (sizes[axis] // size), *([sizes[axis] % size] if sizes[axis] % size else []))
    return Sum(tensor, sizes, axis, cuts)
