"""The places of a model's traced steps where tensors are held, by name."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tf_comptrain.codecs import State
from tf_comptrain.graph.held.states import StateTable
from tf_comptrain.storage import Holding, Site, name_of


class Sites:
    """The sites of a model, those included that are still to be made.

    Attributes:
      table: The states of all.
      by_name: Those that traces have made.
    """

    def __init__(self) -> None:
        self.table = StateTable("comptrain_states", len(State._fields))
        self.by_name: dict[str, Site] = {}
        self._claimed: set[str] = set()
        self._bounds: tuple[float, Mapping[str, float] | None] = (1.0, {})

    def has_room_for(self, name: str) -> bool:
        """Whether there is a row for a place, or one is left beside those that are claimed."""
        return name in self._claimed or not self.table.is_full_for(name, len(self._claimed))

    def claim(self, name: str) -> None:
        """Says that a place will have a row: a step decides on all its tensors before it holds the first."""
        if name not in self.by_name:
            self._claimed.add(name)

    def of(self, tensor: tf.Tensor, holding: Holding) -> Site:
        """The place of a tensor, the same from trace to trace and in every replica."""
        name = name_of(tensor)
        if name not in self.by_name:
            if holding.codec is None:
                raise ValueError(f"{name} is held as {holding}, which has no codec.")
            self._claimed.discard(name)
            state = self.table.row(name)
            site = self.by_name[name] = Site(name, holding.codec, holding.bound, holding.kind, state=state)
            site.adopt_bound(*self._bounds)
        return self.by_name[name]

    def adopt_bounds(self, scale: float, bases: Mapping[str, float] | None) -> None:
        """See `Site.adopt_bound`."""
        self._bounds = scale, bases
        for site in self.by_name.values():
            site.adopt_bound(scale, bases)

    def scale_bounds(self, scale: float) -> None:
        """See `Site.scale_bound`."""
        self._bounds = scale, {}
        for site in self.by_name.values():
            site.scale_bound(scale)
