"""The state of a training run, outside the device allocator: in host memory and on disk.

A failed step is not undone by TensorFlow: variables may be half updated, and under XLA their memory
may be gone. So a snapshot only ever writes variables when it is put back, and never reads one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import instrumentation, is_compressed
from tf_comptrain.training import checkpoint_file, plain_data

if TYPE_CHECKING:
    from tf_comptrain.graph import StateTable

_FILE = "training.ckpt"
# Of a callback: what this call of fit was given, and what is of this process.
_NOT_STATE = ("params", *_keras.PROCESS_ATTRIBUTES)


class TrainingPosition(NamedTuple):
    """How far a training has come.

    Attributes:
      epoch: From 0.
      step: Steps done in this epoch.
      samples: Samples of this epoch that are done.
      batch: Samples per batch from here on.
      begun: Whether `on_epoch_begin` of this epoch has run.
      stopped: Whether a callback ended the training.
      microbatches: Parts of a batch from here on, whose gradients are added up.
    """

    epoch: int
    step: int
    samples: int
    batch: int
    begun: bool = True
    stopped: bool = False
    microbatches: int = 1


class Snapshot(NamedTuple):
    """Everything that training changes, as NumPy arrays and plain data.

    Attributes:
      place: How far the training was.
      variables: Values of `state_variables(model)`, in that order, of the replicas of all processes.
      bound_scale: Factor on all error bounds; None for a plain model.
      bases: The bounds that callbacks have set, without the factor, by name of the site; None where that is not known.
      held: What the traced steps hold, by name: the rows of their codec states.
      callbacks: (class, plain attributes, encoded) of each callback.
    """

    place: TrainingPosition
    variables: tuple[np.ndarray, ...]
    bound_scale: float | None
    bases: dict[str, float] | None
    held: tuple[str, ...]
    callbacks: tuple[tuple[str, dict[str, Any]], ...]


def state_variables(model: keras.Model) -> list:
    """Weights, optimizer slots, iterations, learning rate, seeds, metrics; bounds and their statistics.

    Of a variable that the replicas of a strategy write each for itself, those of this process.
    """
    return [part for part in _parts(model) if part is not None]


def _parts(model: keras.Model) -> list:
    """The same of all processes; None in the place of those of others."""
    return [part for variable in _variables(model) for part in _keras.replica_parts(variable)]


def _variables(model: keras.Model) -> list:
    variables = _keras.all_variables(model)
    if is_compressed(model):
        handle = instrumentation(model)
        variables += [variable for variable in (handle.collecting, handle.pace) if variable is not None]
        variables += [*handle.codec_states(), *handle.statistics()]
    return variables


def signature(model: keras.Model) -> dict[str, Any]:
    """What tells models apart whose variables a snapshot could be put into."""
    handle = instrumentation(model) if is_compressed(model) else None
    return {
        "layers": [type(layer).__name__ for layer in _keras.sublayers(model)],
        "optimizer": type(model.optimizer).__name__,
        "compressed": handle is not None,
        "trained with AdaptiveErrorBound": handle is not None and handle.collecting is not None,
        "trained with AdaptiveBatchSize and a schedule": handle is not None and handle.pace is not None,
        "replicas": model.distribute_strategy.num_replicas_in_sync,
        "variables": [text for variable in _variables(model) for text in _described_parts(variable)],
        # By which the steps of a compressed model find their states.
        "weights": [] if handle is None else sorted(map(_keras.unnumbered, _keras.weight_names(model))),
    }


def take(
    model: keras.Model, callbacks: Sequence[keras.callbacks.Callback], place: TrainingPosition
) -> Snapshot:
    """Copies the state to host memory. Only after a step that succeeded."""
    handle, table = instrumentation(model) if is_compressed(model) else None, _table(model)
    return Snapshot(
        place,
        tuple(_keras.replica_values(_variables(model))),
        None if handle is None else handle.bound_scale,
        {} if handle is None else handle.bases(),
        () if table is None else tuple(table.names),
        attributes(callbacks),
    )


def attributes(callbacks: Sequence[keras.callbacks.Callback]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """(class, plain attributes, encoded) of each callback, the progress bar left out."""
    own = [each for each in _each(callbacks) if not isinstance(each, keras.callbacks.ProgbarLogger)]
    return tuple((_class_of(callback), _plain_attributes(callback)) for callback in own)


def _each(callbacks: Sequence[keras.callbacks.Callback]) -> Iterator[keras.callbacks.Callback]:
    """The callbacks, and those that callbacks are made of."""
    for callback in callbacks:
        yield callback
        yield from getattr(callback, "parts", ())


def with_given(
    snapshot: Snapshot, then: Sequence[tuple[str, dict]], now: Sequence[tuple[str, dict]]
) -> Snapshot:
    """The snapshot for a new call of fit: what no step has changed is as that call's callbacks have it.

    So a `patience` or a `limit_bytes` can be changed from one call to the next, and a counter goes on.

    Args:
      snapshot: From `read`.
      then: The callbacks' attributes when the training began that the snapshot is of.
      now: Those at the beginning of this one.

    Raises:
      ValueError: A callback's state names a function or class that is not there.
    """
    begun, given = list(then), list(now)
    callbacks = []
    for name, found in snapshot.callbacks:
        before, ours = _taken(begun, name), _taken(given, name)
        merged = {}
        for attribute, code in found.items():
            if attribute not in before or not plain_data.same(before[attribute], code):
                merged[attribute] = _checked_code(code, name, attribute)
            elif attribute in ours:
                merged[attribute] = ours[attribute]
        callbacks.append((name, merged))
    return snapshot._replace(callbacks=tuple(callbacks))


def _checked_code(code: Any, callback: str, attribute: str) -> Any:
    try:
        plain_data.decode(code)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The checkpoint has state of the callback {callback} that cannot be made here: `{attribute}`: {error}. "
            "Define or import it before ct.fit, or choose another `checkpoint_dir`."
        ) from None
    return code


def restore(
    snapshot: Snapshot,
    model: keras.Model,
    callbacks: Sequence[keras.callbacks.Callback],
    after_failure: bool = False,
) -> None:
    """Puts the state back. Writes variables, reads none.

    Args:
      snapshot: From `take` or `read`.
      model: The model it is of.
      callbacks: Matched by class and order.
      after_failure: Whether the last step failed.
    """
    variables = _parts(model)
    if len(variables) != len(snapshot.variables):
        raise RuntimeError(
            f"The model has {len(variables)} variables, and had {len(snapshot.variables)} at the snapshot: "
            "make all variables before training (build them in `build`, not in the first step)."
        )
    if after_failure and _keras.jit_compile(model):
        _keras.abandon_buffers(state_variables(model))
    table = _table(model)
    rows = [] if table is None else table.adopt(snapshot.held)
    states = [] if table is None else _keras.replica_parts(table.variable)
    for variable, value in zip(variables, snapshot.variables):
        if variable is None:  # another worker's
            continue
        # A copy: TensorFlow may take an array's memory as it is, and update it in place.
        copy = value.copy()
        if any(variable is part for part in states):
            copy[:] = 0.0
            copy[rows] = value[: len(rows)]
        variable.assign(copy)
    if snapshot.bound_scale is not None:
        instrumentation(model).adopt_bounds(snapshot.bound_scale, snapshot.bases)
    kept = list(snapshot.callbacks)
    for callback in _each(callbacks):
        for name, code in _taken(kept, _class_of(callback)).items():
            _set_attribute(callback, name, plain_data.decode(code))


def _table(model: keras.Model) -> StateTable | None:
    held = instrumentation(model).held if is_compressed(model) else None
    return None if held is None else held.table


def write(snapshot: Snapshot, folder: Path, about: dict[str, Any]) -> None:
    """Writes a snapshot so that a kill at any moment leaves the last complete one in place.

    Args:
      snapshot: From `take`.
      folder: Made where it is missing.
      about: Goes with it, and comes back from `read`: the entries of `_LAYOUT["about"]`.

    Raises:
      OSError: It could not be written: no space, no permission. The last complete one is still in place.
    """
    checkpoint_file.write(folder / _FILE, {"about": about, **snapshot._asdict()})


def read(folder: Path) -> tuple[Snapshot, dict[str, Any]] | None:
    """The last complete snapshot in a folder and what was said about it; None if there is none.

    Raises:
      ValueError: The file is damaged, or none that `write` makes, or of another version of this package.
      OSError: It could not be read: no permission.
    """
    path = folder / _FILE
    try:
        meta = checkpoint_file.read(path)
    except FileNotFoundError:
        return None
    try:
        return _checked(meta)
    except Exception as error:  # as in checkpoint_file.read
        raise checkpoint_file.refusal(path, error) from None


def content(folder: Path) -> bytes:
    """The file that `read` reads, for other processes; empty if there is none."""
    path = folder / _FILE
    return path.read_bytes() if path.exists() else b""


def put_content(folder: Path, found: bytes) -> None:
    """Writes what `content` of another process gave."""
    (folder / _FILE).write_bytes(found)


def _checked(meta: Any) -> tuple[Snapshot, dict[str, Any]]:
    """Snapshot and what was said about it, of which every part is as `write` would have written it."""
    if isinstance(meta, dict):
        meta.setdefault("bases", None)  # a file that does not say
    _check(meta, _LAYOUT, "the content")
    about, scale, place = meta["about"], meta["bound_scale"], TrainingPosition(*meta["place"])
    if not place.step <= place.samples <= about["data"]["samples"]:
        raise ValueError("the position is not one in its data")
    if about["model"].get("variables") != [_described(array) for array in meta["variables"]]:
        raise ValueError("the variables are not those of its model")
    if about["model"].get("compressed") is not (scale is not None):
        raise ValueError("the bounds are not those of its model")
    callbacks = tuple((name, found) for name, found in meta["callbacks"])
    return Snapshot(
        place, tuple(meta["variables"]), scale, meta["bases"], tuple(meta["held"]), callbacks
    ), about


def _described_parts(variable: Any) -> list[str]:
    parts = _keras.replica_parts(variable)
    own = next(part for part in parts if part is not None)
    return [_described(own)] * len(parts)


def _described(variable: Any) -> str:
    """Type and shape of a variable, or of an array with its value."""
    return f"{tf.as_dtype(variable.dtype).name} {list(variable.shape)}"


def _check(value: Any, layout: Any, what: str) -> None:
    """Raises ValueError unless a value is laid out so.

    Args:
      value: From JSON.
      layout: A type: it must have that. A function: it must answer yes. A list of one layout: any number of such. A
        tuple: exactly those. A dict: exactly those keys.
      what: Names the value in the error.
    """
    if isinstance(layout, dict) and isinstance(value, dict) and value.keys() == layout.keys():
        for key, part in layout.items():
            _check(value[key], part, f"{what}, {key}")
    elif isinstance(layout, list) and isinstance(value, list):
        for item in value:
            _check(item, layout[0], what)
    elif isinstance(layout, tuple) and isinstance(value, list) and len(value) == len(layout):
        for item, part in zip(value, layout):
            _check(item, part, what)
    elif not (isinstance(value, layout) if isinstance(layout, type) else callable(layout) and layout(value)):
        raise ValueError(f"{what} is not as it was written")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_size(value: Any) -> bool:
    return _is_count(value) and value > 0


def _is_scale(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isfinite(value) and value > 0)


def _are_bases(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict) and all(base is not None and _is_scale(base) for base in value.values())
    )


def _are_attributes(value: Any) -> bool:
    """Whether all can be decoded. What names refer to is looked up only where they are used."""
    if not isinstance(value, dict):
        return False
    for code in value.values():
        plain_data.decode(code, lambda module, name: None)
    return True


_ATTRIBUTES = [(str, _are_attributes)]  # of each callback
_LAYOUT = {
    "about": {
        "model": dict,  # `signature`
        "data": dict,
        "batch_size": _is_size,
        "callbacks": _ATTRIBUTES,
        "events": [(str, _is_count, _is_count, _is_count, _is_size, _is_size, str, _is_size)],
    },
    "place": (_is_count, _is_count, _is_count, _is_size, bool, bool, _is_size),
    "variables": [np.ndarray],
    "bound_scale": _is_scale,
    "bases": _are_bases,
    "held": [str],
    "callbacks": _ATTRIBUTES,
}


def _class_of(callback: keras.callbacks.Callback) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _plain_attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """name -> code of the attributes that are plain data (`plain_data.encode`)."""
    found = {}
    for name, value in vars(callback).items():
        if name not in _NOT_STATE:
            # A model, an open file, a list that holds itself: not state.
            with contextlib.suppress(TypeError, RecursionError):
                found[name] = plain_data.encode(value)
    return found


def _taken(callbacks: list[tuple[str, dict[str, Any]]], name: str) -> dict[str, Any]:
    """The attributes of the first callback of that class, which is taken out of the list; {} if there is none."""
    for index, (found, _) in enumerate(callbacks):
        if found == name:
            return callbacks.pop(index)[1]
    return {}


def _set_attribute(callback: keras.callbacks.Callback, name: str, value: Any) -> None:
    """Fills lists and dicts in place: others may hold them."""
    current = vars(callback).get(name)
    if isinstance(current, list) and isinstance(value, list):
        current[:] = value
    elif isinstance(current, dict) and isinstance(value, dict):
        current.clear()
        current.update(value)
    else:
        with contextlib.suppress(AttributeError):  # a property without a setter
            setattr(callback, name, value)
