"""Which layers of a model run by a rule, and which have a storage of the user's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.rules import Rule, find_rule
from tf_comptrain.storage import COMPRESS, FUSED, KEEP, OFFLOAD, REBUILD, Holding, Offload, holding_of

Storage = str | Offload
StorageChoice = Storage | Mapping[Any, Storage] | Callable[[keras.layers.Layer], Storage | None] | None
_CHOICES = (COMPRESS, REBUILD, FUSED, KEEP, OFFLOAD)


class LayerChoice(NamedTuple):
    """What will happen to a layer, or operation of a functional graph.

    Attributes:
      layer: The layer or operation.
      path: Its name, with those of the models and layers it is in.
      storage: The user's choice; None where there is none.
      rule: None where the layer's own code runs.
    """

    layer: Any
    path: str
    storage: Storage | None
    rule: Rule | None


def plan_model(model: keras.Model, storage: StorageChoice) -> list[LayerChoice]:
    """What `compress_model` will do with each layer and operation that it does something with; changes nothing.

    Raises:
      TypeError: `storage` of the wrong type.
      ValueError: An unknown storage or layer name, or a layer whose `call` was overridden by hand.
    """
    parts = list(_parts(model, ""))
    choose = _chooser(storage, parts)
    plans = []
    for path, layer in parts:
        choice, rule = choose(path, layer), find_rule(layer)
        if _is_exact(choice) or rule is not None and rule.obstacle(layer) is not None:
            rule = None
        if (rule is None and choice is None) or _is_shared(path, layer):
            continue
        plans.append(LayerChoice(layer, path, choice, rule))
    return plans


def offloads_all(storage: StorageChoice) -> Holding | None:
    """How the whole of a step is offloaded; None where it is not."""
    found = _named(storage) if isinstance(storage, (str, Offload)) else None
    return holding_of(found) if isinstance(found, Offload) else None


def operations_chosen(model: keras.Model, storage: StorageChoice) -> dict[str, Storage]:
    """Those of a mapping's keys that name operations of the traced step, and no layers, with their storages."""
    if not isinstance(storage, Mapping):
        return {}
    known = _names(list(_parts(model, "")))
    return {key: _named(value) for key, value in storage.items() if key not in known and isinstance(key, str)}


def parts_of_model(model: keras.Model) -> list[tuple[str, Any]]:
    """(path, layer) of all layers and operations of a model; the paths are keys of a mapping."""
    return list(_parts(model, ""))


def _parts(layer: keras.layers.Layer, prefix: str, seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """(path, layer) of all layers and operations inside, each once, inner ones before those they are in."""
    seen = set() if seen is None else seen
    for child in _keras.direct_sublayers(layer):
        if id(child) in seen:
            continue
        seen.add(id(child))
        path = f"{prefix}{child.name}"
        if not getattr(child, "handles_storage", False):
            yield from _parts(child, f"{path}/", seen)
        yield path, child
    for operation in _keras.graph_operations(layer):
        if id(operation) not in seen:
            seen.add(id(operation))
            yield f"{prefix}{operation.name}", operation


def _is_shared(path: str, layer: Any) -> bool:
    """Whether another compressed model, or a wrapper, has overridden the layer's `call`."""
    if not _keras.has_own_call(layer):
        return False
    override = vars(layer)["call"]
    if getattr(override, "compresses", False):
        return True
    raise ValueError(
        f"Layer {path!r} has a `call` of its own, set on the instance: {override!r}. compress_model "
        "overrides `call` itself: delete that attribute, or define it in a subclass."
    )


def _names(parts: list[tuple[str, Any]]) -> set:
    return {name for path, layer in parts for name in (path, layer.name, *type(layer).__mro__)}


def _chooser(storage: StorageChoice, parts: list[tuple[str, Any]]) -> Callable[[str, Any], Storage | None]:
    """(path, layer) -> the user's storage for it, or None."""
    if storage is None or storage == COMPRESS:
        return lambda path, layer: None
    if isinstance(storage, (str, Offload)):
        named = _named(storage)
        return lambda path, layer: named
    if isinstance(storage, Mapping):
        _check_keys(storage, _names(parts))
        choices = {key: _named(choice) for key, choice in storage.items()}
        return lambda path, layer: next(
            (choices[key] for key in (path, layer.name, *type(layer).__mro__) if key in choices), None
        )
    if callable(storage):
        return lambda path, layer: _checked(storage(layer))
    raise TypeError(
        "`storage` must be None, a string or an Offload, a mapping from layers to these or a function from a layer to "
        f"one of these. Received: {storage!r} (of type {type(storage).__name__})."
    )


def _is_exact(choice: Storage | None) -> bool:
    """Whether training has to be what it is in plain Keras, bit for bit."""
    return choice.is_lossless if isinstance(choice, Offload) else choice == KEEP


def _check_keys(storage: Mapping[Any, Storage], known: set) -> None:
    for key, value in storage.items():
        _named(value)
        is_operation = isinstance(key, str) and "/" in key  # of the traced step, which is not there yet
        if key not in known and not isinstance(key, type) and not is_operation:
            raise ValueError(
                f"`storage` names a layer that the model does not have. Received: {key!r}. Keys are layer names or "
                "paths, layer classes themselves (keras.layers.Dense), or names of operations with the scopes they "
                "are in, as the report has them."
            )


def _checked(choice: Storage | None) -> Storage | None:
    return None if choice is None else _named(choice)


def _named(choice: Any) -> Storage:
    """A choice, checked."""
    if isinstance(choice, Offload):
        return choice
    if choice == OFFLOAD:
        return Offload()
    if choice not in _CHOICES:
        raise ValueError(
            f"`storage` must be one of {', '.join(map(repr, _CHOICES))} or an Offload. Received: {choice!r}."
        )
    return choice
