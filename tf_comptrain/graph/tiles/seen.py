"""The keys that the queries of one tile see, in the graph of a loop's body."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_comptrain.graph.tiles.columns import ADDED, Columns

_ROUNDED = 16  # the executor's tiles have a multiple of so many
_PARTS = 4  # under XLA, which knows all sizes before it runs: as many sizes


class SeenColumns:
    """A range of keys that has all that are seen.

    Args:
      columns: Of the region; None: it has all keys.
      begin: The first of them.
      count: Of them.
    """

    def __init__(self, columns: Columns | None, begin: Any = 0, count: Any = 0):
        self._made: Mapping[Any, int] = columns.made if columns else {}
        self._read: Mapping[Any, int] = columns.read if columns else {}
        self._operations = columns.operations if columns else frozenset()
        self._begin, self._count, self._of = begin, count, columns.keys if columns else 0
        self._found: dict[Any, tf.Tensor] = {}

    def sizes(self, tensor: tf.Tensor, sizes: Sequence[Any], static: bool) -> Sequence[Any]:
        """Sizes of a tensor in a tile, by those of all keys; `static`: None for one that only a run says."""
        place = self._made.get(tensor.ref())
        if place is None:
            return sizes
        count = None if static and tf.is_tensor(self._count) else self._count
        return [*sizes[:place], count, *sizes[place + 1 :]]

    def read(self, op: tf.Operation, tensor: tf.Tensor, operand: tf.Tensor) -> tf.Tensor:
        """What an operation reads of a tensor whose values are an operand's."""
        place = self._read.get(tensor.ref())
        if place is None or op.name not in self._operations:
            return operand
        if tensor.ref() not in self._found:
            ranges = [
                (self._begin, self._count) if n == place else (0, -1) for n in range(operand.shape.rank)
            ]
            self._found[tensor.ref()] = tf.slice(operand, *zip(*ranges))
        return self._found[tensor.ref()]

    def padded(self, tensor: tf.Tensor, made: tf.Tensor) -> tf.Tensor:
        """What a tile makes of a tensor, with zeros at the other keys."""
        place = self._made.get(tensor.ref())
        if place is None:
            return made
        missing = [self._begin, self._of - self._begin - self._count]
        padded = tf.pad(made, [missing if n == place else [0, 0] for n in range(made.shape.rank)])
        padded.set_shape([self._of if n == place else size for n, size in enumerate(made.shape)])
        return padded


EVERY_KEY = SeenColumns(None)


def seen_by_tile(columns: Columns, made: Mapping[Any, tf.Tensor]) -> SeenColumns:
    """Those that a tile's queries see.

    Args:
      columns: Of the region.
      made: Its tensors in this tile, by reference of those of the region.
    """
    first, end = _range_of(columns, made)
    end = tf.minimum((end + _ROUNDED - 1) // _ROUNDED * _ROUNDED, columns.keys)
    first = tf.minimum(first, end - 1) // _ROUNDED * _ROUNDED
    return SeenColumns(columns, first, end - first)


def sizes_of_tiles(columns: Columns, made: Mapping[Any, tf.Tensor]) -> tuple[tf.Tensor, list[SeenColumns]]:
    """As `seen_by_tile`, of sizes that are known before: which of them a tile has, and all of them."""
    part = -(-columns.keys // _PARTS)
    counts = [min(part * (n + 1), columns.keys) for n in range(_PARTS)]
    _, end = _range_of(columns, made)
    return (end - 1) // part, [SeenColumns(columns, 0, count) for count in counts]


def _range_of(columns: Columns, made: Mapping[Any, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """The first key that a tile reads, and the one after the last.

    A query that sees none has the same share of every key.
    """
    place = columns.read[columns.masks[0].ref()]
    masks = [_as_bool(made.get(mask.ref(), mask)) for mask in columns.masks]
    has_keys = tf.reduce_all(tf.reduce_any(functools.reduce(tf.logical_and, masks), place))
    others = [n for n in range(masks[0].shape.rank) if n != place]
    seen = functools.reduce(tf.logical_or, (tf.reduce_any(mask, others) for mask in masks))
    seen = tf.logical_or(seen, tf.logical_not(has_keys))
    keys = tf.range(columns.keys)
    return (
        tf.reduce_min(tf.where(seen, keys, columns.keys - 1)),
        tf.reduce_max(tf.where(seen, keys + 1, 1)),
    )


def _as_bool(mask: tf.Tensor) -> tf.Tensor:
    """Whether a query sees a key, by a mask or by what is added to scores."""
    return mask if mask.dtype == tf.bool else mask > ADDED
