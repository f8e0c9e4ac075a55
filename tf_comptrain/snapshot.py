"""The state of a training run, outside the device allocator: in host memory and on disk.

A failed step is not undone by TensorFlow: variables may be half updated, and under XLA their memory
may be gone. So a snapshot only ever writes variables when it is put back, and never reads one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.model import instrumentation, is_compressed

_FILE = "training.ckpt"
_FORMAT = 2
_NOT_STATE = ("params",)  # of a callback: what this call of fit was given


class Place(NamedTuple):
    """How far a training has come.

    Attributes:
      epoch: From 0.
      step: Steps done in this epoch.
      samples: Samples of this epoch that are done.
      batch: Samples per batch from here on.
      begun: Whether `on_epoch_begin` of this epoch has run.
      stopped: Whether a callback ended the training.
    """

    epoch: int
    step: int
    samples: int
    batch: int
    begun: bool = True
    stopped: bool = False


class Snapshot(NamedTuple):
    """Everything that training changes, as NumPy arrays and plain data.

    Attributes:
      place: How far the training was.
      variables: Values of `state_variables(model)`, in that order.
      bound_scale: Factor on all error bounds; None for a plain model.
      callbacks: (class, plain attributes, encoded) of each callback.
    """

    place: Place
    variables: tuple[np.ndarray, ...]
    bound_scale: float | None
    callbacks: tuple[tuple[str, dict[str, Any]], ...]


def state_variables(model: keras.Model) -> list:
    """Weights, optimizer slots, iterations, learning rate, seeds, metrics; bounds and their statistics.

    Of a variable that the replicas of a strategy write each for itself, the replicas' own.
    """
    variables = _keras.all_variables(model)
    if is_compressed(model):
        handle = instrumentation(model)
        variables += [variable for variable in (handle.collecting, handle.pace) if variable is not None]
        for site in handle.sites().values():
            variables.append(site.state)
            if site.statistics is not None:
                variables += [site.statistics.output, site.statistics.weight]
    return [part for variable in variables for part in _keras.replica_parts(variable)]


def signature(model: keras.Model) -> dict[str, Any]:
    """What tells models apart whose variables a snapshot could be put into."""
    handle = instrumentation(model) if is_compressed(model) else None
    return {
        "layers": [type(layer).__name__ for layer in _keras.sublayers(model)],
        "optimizer": type(model.optimizer).__name__,
        "compressed": handle is not None,
        "trained with AdaptiveErrorBound": handle is not None and handle.collecting is not None,
        "trained with AdaptiveBatchSize and a schedule": handle is not None and handle.pace is not None,
        "variables": [f"{tf.as_dtype(v.dtype).name} {list(v.shape)}" for v in state_variables(model)],
    }


def take(model: keras.Model, callbacks: Sequence[keras.callbacks.Callback], place: Place) -> Snapshot:
    """Copies the state to host memory. Only after a step that succeeded."""
    return Snapshot(
        place,
        tuple(np.array(v.numpy()) for v in state_variables(model)),
        instrumentation(model).bound_scale if is_compressed(model) else None,
        attributes(callbacks),
    )


def attributes(callbacks: Sequence[keras.callbacks.Callback]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """(class, plain attributes, encoded) of each callback, the progress bar left out."""
    return tuple(
        (_class_of(callback), _plain_attributes(callback))
        for callback in callbacks
        if not isinstance(callback, keras.callbacks.ProgbarLogger)
    )


def with_given(
    snapshot: Snapshot, then: Sequence[tuple[str, dict]], now: Sequence[tuple[str, dict]]
) -> Snapshot:
    """The snapshot for a new call of fit: what no step has changed is as that call's callbacks have it.

    So a `patience` or a `memory_limit` can be changed from one call to the next, and a counter goes on.

    Args:
      snapshot: From `read`.
      then: The callbacks' attributes when the training began that the snapshot is of.
      now: Those at the beginning of this one.
    """
    begun, given = list(then), list(now)
    callbacks = []
    for name, found in snapshot.callbacks:
        before, ours = _taken(begun, name), _taken(given, name)
        same = [k for k, code in found.items() if k in before and _text(before[k]) == _text(code)]
        callbacks.append((name, {**found, **{k: ours[k] for k in same if k in ours}}))
    return snapshot._replace(callbacks=tuple(callbacks))


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
    variables = state_variables(model)
    if len(variables) != len(snapshot.variables):
        raise RuntimeError(
            f"The model has {len(variables)} variables, and had {len(snapshot.variables)} at the snapshot: "
            "make all variables before training (build them in `build`, not in the first step)."
        )
    if after_failure and _keras.jit_compile(model):
        _keras.abandon_buffers(variables)
    for variable, value in zip(variables, snapshot.variables):
        # A copy: TensorFlow may take an array's memory as it is, and update it in place.
        variable.assign(value.copy())
    if snapshot.bound_scale is not None:
        instrumentation(model).bound_scale = snapshot.bound_scale
    kept = list(snapshot.callbacks)
    for callback in callbacks:
        for name, code in _taken(kept, _class_of(callback)).items():
            _set_attribute(callback, name, _decode(code))


def write(snapshot: Snapshot, folder: Path, about: dict[str, Any]) -> None:
    """Writes a snapshot so that a kill at any moment leaves the last complete one in place.

    Args:
      snapshot: From `take`.
      folder: Made where it is missing.
      about: Goes with it, and comes back from `read`: what JSON can say, and NumPy arrays.
    """
    arrays: list[np.ndarray] = []

    def reference(array: np.ndarray) -> dict[str, Any]:
        arrays.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return {"file": f"arr_{len(arrays) - 1}", "dtype": array.dtype.name, "shape": array.shape}

    meta = json.dumps({"format": _FORMAT, "about": about, **snapshot._asdict()}, default=reference)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{_FILE}.tmp"
    with open(temporary, "wb") as file:
        np.savez(file, *arrays, meta=np.frombuffer(meta.encode(), np.uint8))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / _FILE)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(folder: Path) -> tuple[Snapshot, dict[str, Any]] | None:
    """The last complete snapshot in a folder and what was said about it; None if there is none.

    Raises:
      ValueError: The file is damaged, or of another version of this package.
    """
    path = folder / _FILE
    if not path.exists():
        return None
    try:
        with np.load(path) as file:

            def array(found: dict[str, Any]) -> Any:
                if found.keys() != {"file", "dtype", "shape"}:
                    return found
                values = file[found["file"]].tobytes()
                return np.frombuffer(values, np.dtype(found["dtype"])).reshape(found["shape"])

            text = file["meta"].tobytes()
            version = json.loads(text)["format"]
            if version != _FORMAT:
                raise ValueError(f"format {version}, not {_FORMAT}")
            meta = json.loads(text, object_hook=array)
            return (
                Snapshot(
                    Place(*meta["place"]),
                    tuple(meta["variables"]),
                    meta["bound_scale"],
                    tuple((name, found) for name, found in meta["callbacks"]),
                ),
                meta["about"],
            )
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a checkpoint of ct.fit: {error}. Remove it to begin anew.") from None


def _class_of(callback: keras.callbacks.Callback) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _plain_attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """name -> code of the attributes that are numbers, strings, arrays and containers of those."""
    found = {}
    for name, value in vars(callback).items():
        if name not in _NOT_STATE:
            with contextlib.suppress(TypeError):  # a model, an open file: not state
                found[name] = _encode(value)
    return found


def _taken(callbacks: list[tuple[str, dict[str, Any]]], name: str) -> dict[str, Any]:
    """The attributes of the first callback of that class, which is taken out of the list; {} if there is none."""
    for index, (found, _) in enumerate(callbacks):
        if found == name:
            return callbacks.pop(index)[1]
    return {}


def _text(code: Any) -> str:
    """The same for equal codes, arrays included."""

    def digest(array: np.ndarray) -> list:
        return [
            array.dtype.name,
            array.shape,
            hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest(),
        ]

    return json.dumps(code, default=digest)


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


def _encode(value: Any) -> Any:
    """JSON with arrays in it that `_decode` turns back into the same types.

    Raises:
      TypeError: Not plain data.
    """
    if value is None or isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.array(value)
        if array.dtype.hasobject:
            raise TypeError("object array")
        return {"array": array, "scalar": isinstance(value, np.generic)}
    if isinstance(value, dict):
        return {"dict": [[_encode(k), _encode(v)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [_encode(item) for item in value]
        if type(value) is list:
            return items
        if type(value) is tuple:
            return {"tuple": items}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {"named": [type(value).__module__, type(value).__qualname__], "items": items}
    raise TypeError(f"not plain data: {type(value).__name__}")


def _decode(code: Any) -> Any:
    if isinstance(code, list):
        return [_decode(item) for item in code]
    if not isinstance(code, dict):
        return code
    if "array" in code:
        return code["array"][()] if code["scalar"] else code["array"].copy()
    if "dict" in code:
        return {_decode(k): _decode(v) for k, v in code["dict"]}
    if "tuple" in code:
        return tuple(_decode(item) for item in code["tuple"])
    items = tuple(_decode(item) for item in code["items"])
    module, name = code["named"]
    found: Any = getattr(sys.modules.get(module), name, None)
    if isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields"):
        return found(*items)
    return items
