"""Where the rows of a tensor are: what a tile has some of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain.graph.tiles.cuts import RowCut
from tf_comptrain.graph.tiles.sizes import KnownSizes, Sizes, of_sample


class Rows(NamedTuple):
    """Where the rows of a tensor are.

    Attributes:
      dimensions: Whose sizes have their number as product, the last one running fastest. Below zero: one of size 1
        that the tensor would have before its first.
      repeats: Which of these have one value for all rows: numbers of places in `dimensions`.
      cut: What is left out of all rows; None: nothing.
    """

    dimensions: tuple[int, ...]
    repeats: frozenset[int] = frozenset()
    cut: RowCut | None = None

    @property
    def last(self) -> int:
        """The dimension that has the rows of a tile, while the others have one."""
        return self.dimensions[-1]

    @property
    def first(self) -> Rows:
        """The first of the dimensions alone."""
        return Rows(self.dimensions[:1])

    def before(self, sizes: Sizes) -> Sizes:
        """The sizes of the other dimensions before the last one."""
        return tuple(sizes[place] for place in range(self.last) if place not in self.dimensions)

    def after(self, sizes: Sizes) -> Sizes:
        """The sizes of the other dimensions after the last one."""
        places = range(self.last + 1, len(sizes))
        return tuple(sizes[place] for place in places if place not in self.dimensions)

    def others(self, sizes: Sizes) -> Sizes:
        """The sizes of all other dimensions: of one row."""
        return (*self.before(sizes), *self.after(sizes))

    def joined(self, sizes: Sequence[Any], row_sizes: Sequence[Any]) -> list:
        """The sizes of a tensor, with these in the dimensions of rows."""
        found = list(sizes)
        for place, size in zip(self.dimensions, row_sizes):
            if place >= 0:
                found[place] = size
        return found

    def moved(self, shift: int) -> Rows:
        """The same some dimensions later."""
        return self._replace(dimensions=tuple(place + shift for place in self.dimensions))


def leading(count: int) -> Rows:
    """So many dimensions, from the first on."""
    return Rows(tuple(range(count)))


def viewed(rows: Rows, before: Sizes, after: Sizes) -> Rows | None:
    """The rows of a tensor in another shape, by sizes before and after; None where they are not known to be there.

    Of several answers, which differ by dimensions of one value, that with the fewest dimensions.
    """
    first, last = rows.dimensions[0], rows.last
    if rows.dimensions != tuple(range(first, last + 1)):
        return None
    others = rows.others(before)
    # One size that only a run says is the same before and after where all the others have one product.
    if others.count(None) > 1 or None in others and of_sample(before) != of_sample(after):
        return None
    head, rest = _count(before[:first]), _count(before[last + 1 :])
    for first in reversed(range(len(after))):
        for end in range(first + 1, len(after) + 1):
            if _count(after[:first]) == head and _count(after[end:]) == rest:
                return Rows(tuple(range(first, end)), cut=rows.cut)
    return None


def _count(sizes: Sizes) -> tuple[int, int]:
    """How many sizes only a run says, and the product of the others."""
    return sizes.count(None), of_sample(sizes)


def operand_rows(tensor: tf.Tensor, result: Rows, output: tf.Tensor, known: KnownSizes) -> Rows | None:
    """Rows of an operand that is broadcast to a result with rows; None where all rows read the same of it."""
    own, whole = known.of(tensor), known.of(output)
    shift = len(whole) - len(own)
    rows = result.moved(-shift)
    single = [place < 0 or own[place] == 1 for place in rows.dimensions]
    if all(single):
        return None
    repeats = (
        k for k, place in enumerate(rows.dimensions) if single[k] and (place < 0 or whole[place + shift] != 1)
    )
    return rows._replace(repeats=frozenset(repeats))
