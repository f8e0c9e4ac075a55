"""From where on tensors run by tiles, and how large a tile is."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

# A product is wide from so many times the length of the rows that it reads on.
WIDER = 4
# Operations on one number a row that stand between a loss and its gradient, at most.
MOST_BETWEEN = 100
# From where on it runs by tiles, and what a tile of the widest tensor takes. A few such tensors are alive
# at once, and each tile adds to whole gradients of weights: smaller ones take less memory, and more passes
# over these.
LEAST_BYTES = 16 << 20
TILE_BYTES = 8 << 20
# XLA compiles the body of a loop as a whole: many small tiles cost it less.
SMALLER_UNDER_XLA = 4
# TensorFlow's products of 16-bit values on CPUs make scratch of twice their size, and small ones take less time.
SMALLER_OF_HALVES = 4


class TileSizes(NamedTuple):
    """How large tiles are.

    Attributes:
      least_bytes: What a product that runs by tiles makes, at least.
      bytes: What a tile of the widest tensor takes, at least.
      of_sum: How many times the largest sum that it adds to a tile takes, at least.
      part_bytes: What a tile adds to a sum at once; None: all of it.
      smaller_of_halves: How many times smaller the first two are for 16-bit values.
    """

    least_bytes: int
    bytes: int
    of_sum: float
    part_bytes: int | None
    smaller_of_halves: int = 1

    def of(self, dtype: tf.DType) -> TileSizes:
        """Those for values of a type."""
        smaller = self.smaller_of_halves if dtype.size == 2 else 1
        return self._replace(least_bytes=self.least_bytes // smaller, bytes=self.bytes // smaller)


def tile_sizes(xla: bool, on_gpu: bool, smaller: int = 1) -> TileSizes:
    """Those for an engine: a GPU multiplies so fast that what is added up is most of a small tile's time.

    `smaller`: how many times smaller than usual.
    """
    if on_gpu:
        usual = TileSizes(LEAST_BYTES, 8 * TILE_BYTES, of_sum=4 / 3, part_bytes=None)
    else:
        by_engine = SMALLER_UNDER_XLA if xla else 1
        of_halves = 1 if xla else SMALLER_OF_HALVES
        usual = TileSizes(LEAST_BYTES // by_engine, TILE_BYTES // by_engine, 1 / 3, TILE_BYTES, of_halves)
    return usual._replace(least_bytes=usual.least_bytes // smaller, bytes=usual.bytes // smaller)
