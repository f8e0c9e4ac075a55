"""Why a wide tensor has to exist whole, or is made twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf


class Untiled(Exception):
    """Why a wide tensor has to exist whole."""


class MuchBetween(Untiled):
    """The gradient comes later: the wide tensor is held meanwhile."""


class DrawnWhole(Untiled):
    """No tile can draw its own random numbers."""


class InTwoPasses(Exception):
    """The gradient comes later, and what is wide is made again for it.

    Attributes:
      inside: Of the region that would be there: its operations, by name.
      wide: Names of those that make something wide.
      exact: Of a head: what it reads by rows, and what it makes for each row. Held as they are, these make the
        gradient of the loss exact.
    """

    def __init__(
        self, inside: Mapping[str, tf.Operation], wide: frozenset[str], exact: Sequence[tf.Tensor] = ()
    ):
        super().__init__("its gradient comes later")
        self.inside, self.wide, self.exact = inside, wide, tuple(exact)
