"""What is held of a model's traced steps, and how: what compress_model makes for a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.codecs import Codec
from tf_comptrain.graph.crossings import NEEDED_AT_ONCE, Crossing
from tf_comptrain.graph.devices import keep_on_stages
from tf_comptrain.graph.held.law_error import LawError
from tf_comptrain.graph.held.law_statistics import LawStatistics, StatisticsOfStep
from tf_comptrain.graph.held.sites import Sites
from tf_comptrain.graph.held.states import StateTable
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.held.wishes import Wishes
from tf_comptrain.graph.offloading import order_copies
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.rewire import rewire
from tf_comptrain.graph.tensors import base_of
from tf_comptrain.storage import (
    COMPRESS,
    KEEP,
    REBUILD,
    Engine,
    Holding,
    LawSite,
    Offloaded,
    Site,
    engine_of_step,
    keep_layouts,
    name_of,
)


class HeldTensors:
    """What is held of a model's traced steps, and how.

    Streams on the executor always have dither: what a step computes with them has an error without bias then, which
    averages out.

    Args:
      wishes: What is said of how tensors are held.
      variables: Returns the model's variables as they are now: a step that reads one of them is the model's.

    Attributes:
      wishes: As given.
      variables: As given.
    """

    def __init__(self, wishes: Wishes, variables: Callable[[], list]):
        self.wishes = wishes
        self.variables = variables
        self._crossings: Mapping[str, Crossing] = {}
        self._sites = Sites()
        self._law = LawStatistics()
        self._said: set[str] = set()

    def beside(self) -> HeldTensors:
        """Another with the same wishes, and states of its own: for a step that is traced to be looked at."""
        other = HeldTensors(self.wishes, self.variables)
        other._said = self._said
        return other

    @property
    def crossings(self) -> tuple[Crossing, ...]:
        """What crossed in the step that was traced last, in order."""
        return tuple(self._crossings.values())

    @property
    def codec(self) -> Codec:
        """How tensors are encoded for which there is no policy."""
        return self.wishes.codec

    @property
    def table(self) -> StateTable:
        """The states of its sites."""
        return self._sites.table

    @property
    def sites(self) -> dict[str, Site]:
        """Where tensors are held, by name."""
        return self._sites.by_name

    @property
    def statistics(self) -> StateTable | None:
        """Reductions of gradients for the error-bound law, a row for each `LawSite`; None until `collect`."""
        return self._law.table

    def is_of(self, graph: tf.Graph) -> bool:
        """Whether a graph reads a variable of the model."""
        return not _keras.captured_from_outside(graph).isdisjoint(self.weights())

    def rewire(self, backward: _keras.BackwardPass) -> dict[str, tf.Tensor]:
        """See `graph.rewire`."""
        engine = engine_of_step(backward)
        keep_layouts(engine)
        streams, statistics = _keras.kept_with(backward.graph, self, lambda: self._begin(engine))
        streams.begin(engine, backward.recorded, self._law.are_asked_for)
        result = rewire(backward, streams)
        staying = order_copies(backward, streams.offloaded)
        statistics.collect(backward, result.uses, self.weights())
        streams.states.write()
        statistics.write()
        keep_on_stages(backward, result.replaced)
        for crossing in _with_staying(result.crossings, staying):  # of all gradients of a step
            streams.crossings.setdefault(crossing.name, crossing)
        self._crossings = streams.crossings
        return result.replaced

    def collect(self, enabled: tf.Variable) -> None:
        """From the next trace on, steps collect what the error-bound law needs wherever `enabled` is True."""
        self._law.collect(enabled)

    @contextlib.contextmanager
    def checked(self) -> Iterator[list[LawError]]:
        """Inside, steps that are traced also compute what the error-bound law is held against, for the list.

        They are not the step that `crossings` tells of afterwards.
        """
        self._law.errors, crossings = [], self._crossings
        try:
            yield self._law.errors
        finally:
            self._law.errors, self._crossings = None, crossings

    def law_sites(self) -> list[LawSite]:
        """Tensors that gradients of weights are made of, in the steps that were traced since `collect`."""
        return self._law.law_sites()

    def weights(self) -> dict[int, Any]:
        """The model's variables by the ids of their handles."""
        return _keras.by_handle(self.variables())

    def adopt_bounds(self, scale: float, bases: Mapping[str, float] | None) -> None:
        """See `Site.adopt_bound`: of all sites, those included that are still to be made."""
        self._sites.adopt_bounds(scale, bases)

    def scale_bounds(self, scale: float) -> None:
        """See `Site.scale_bound`: of all sites, those included that are still to be made."""
        self._sites.scale_bounds(scale)

    def _begin(self, engine: Engine) -> tuple[StreamsOfStep, StatisticsOfStep]:
        """What is held of a graph that is traced, and what it adds to the statistics."""
        streams = StreamsOfStep(self.wishes, self._sites, engine, said=self._said)
        return streams, StatisticsOfStep(self._law, streams.states, engine.xla)


def _with_staying(crossings: Iterable[Crossing], staying: Iterable[Offloaded]) -> Iterator[Crossing]:
    """Crossings as they are where some of what was to be offloaded stays on the device after all."""
    by_name = {name_of(each.x): each for each in staying}
    for crossing in crossings:
        stays = by_name.get(crossing.name)
        if stays is not None:
            storage = KEEP if stays.value is stays.x else COMPRESS
            crossing = crossing._replace(storage=storage, note=NEEDED_AT_ONCE)
        yield crossing


def made_by(tensor: tf.Tensor, holding: Holding) -> Iterator[tf.Operation]:
    """The operation that makes a tensor a layer reads; to have it rebuilt also those up to a batch normalization."""
    op = base_of(tensor).op
    yield op
    while holding.way == REBUILD and (row := about(op.type)).is_elementwise and row.again:
        op = base_of(op.inputs[0]).op
        yield op
