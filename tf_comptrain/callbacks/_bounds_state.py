"""The state of `AdaptiveErrorBound`: for tf.train.Checkpoint, and in a folder beside BackupAndRestore's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import Instrumentation

_FILE = "error_bounds.json"


class BoundsState(NamedTuple):
    """What steers the bounds, and what the codecs carry from step to step.

    Attributes:
      steps: Training steps so far.
      next: Step of the next collection.
      wanted: Name of a `LawSite` -> the bound it wants for itself.
      correction: Name of a `LawSite` -> how much the law promises too little there.
      sites: Site -> its codec state, as `codecs.State`.
      held: The same of what the traced steps hold, which take it over when they are traced.
      weights: `_keras.weight_names` of the model; empty where they are not known.
    """

    steps: int
    next: int
    wanted: dict[str, float]
    correction: dict[str, float]
    sites: dict[str, list[float]]
    held: dict[str, list[float]]
    weights: Sequence[str] = ()


def codec_states(handle: Instrumentation) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """`sites` and `held` of a `BoundsState`."""
    sites = {name: list(site.read_state()) for name, site in handle.own_sites().items()}
    return sites, {} if handle.held is None else handle.held.table.values()


def put_codec_states(handle: Instrumentation, state: BoundsState) -> None:
    for name, site in handle.own_sites().items():
        site.state.assign(state.sites[name])
    if handle.held is not None:
        handle.held.table.put(state.held)
    handle.adopt_bounds(handle.bound_scale, None)


def for_model(
    state: BoundsState, handle: Instrumentation, weights: Sequence[str] = (), argument: str = "state"
) -> BoundsState:
    """The state with this model's names: Keras numbers the layers of a model that is built a second time anew.

    Args:
      state: As it was saved.
      handle: Of the model.
      weights: `_keras.weight_names` of the model; empty where they are not known.
      argument: Where the state comes from, for the error.

    Raises:
      ValueError: The state is of another model.
    """
    sites = list(handle.own_sites())
    _check_same(list(state.sites), sites, argument)
    if state.weights and weights:  # in order, since layers that are frozen come last
        _check_same(
            sorted(state.weights, key=_keras.unnumbered), sorted(weights, key=_keras.unnumbered), argument
        )
    return state._replace(sites={ours: state.sites[theirs] for theirs, ours in zip(state.sites, sites)})


def _check_same(theirs: Sequence[str], ours: Sequence[str], argument: str) -> None:
    if list(map(_keras.unnumbered, theirs)) != list(map(_keras.unnumbered, ours)):
        pairs = zip(theirs, ours)
        other = next((pair for pair in pairs if len(set(map(_keras.unnumbered, pair))) > 1), None)
        there, here = other or (f"{len(theirs)} names", f"{len(ours)} names")
        raise ValueError(
            f"`{argument}` must be of a training of this model. Received error bounds of another model: {there!r} "
            f"there, {here!r} here. Restore them into the same model, compressed in the same way, or begin with an "
            "empty folder."
        )


def for_names(values: dict[str, float], names: Sequence[str]) -> dict[str, float]:
    """Values of the places that a step was traced with, by their names, where those differ in Keras' numbers alone."""
    left = dict(values)
    found = {name: left.pop(name) for name in names if name in left}
    for name in names:
        like = None if name in found else _keras.unnumbered(name)
        there = next((other for other in left if _keras.unnumbered(other) == like), None)
        if there is not None:
            found[name] = left.pop(there)
    return {**left, **found}


class Checkpointed(tf.train.experimental.PythonState):
    """Lets a tf.train.Checkpoint save and restore a `BoundsState`.

    Args:
      current: Returns the state now; None before any training.

    Attributes:
      restored: What a checkpoint brought, until training begins and takes it.
    """

    def __init__(self, current: Callable[[], BoundsState | None]):
        self._current = current
        self.restored: BoundsState | None = None

    def serialize(self) -> str:
        return json.dumps(self._current())

    def deserialize(self, string_value: str) -> None:
        found = json.loads(string_value)
        self.restored = None if found is None else BoundsState(*found)


def write(state: BoundsState, folder: Path) -> None:
    """Atomically: a kill leaves the last complete file in place."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{_FILE}.tmp"
    temporary.write_text(json.dumps(state))
    os.replace(temporary, folder / _FILE)


def read(folder: Path) -> BoundsState | None:
    path = folder / _FILE
    return BoundsState(*json.loads(path.read_text())) if path.exists() else None


def remove(folder: Path) -> None:
    (folder / _FILE).unlink(missing_ok=True)
