"""Which rule each layer of a model gets, how its tensors will be held, and why some stay plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Union

from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.rules import METHODS, Rule, find_rule
from tf_comptrain.storage import BITMASK, COMPRESS, FUSED, KEEP, NOTHING, RECOMPUTE

StorageChoice = Union[str, Mapping[Any, str], Callable[[keras.layers.Layer], Union[str, None]], None]
_CHOICES = (COMPRESS, RECOMPUTE, BITMASK, FUSED, KEEP)
KEPT_BY_CHOICE = "storage='keep'"
_RECOMPUTED = "runs again, inside tf_comptrain.Recompute"
_WRAPPED = "wrapped in tf_comptrain.Compress"
_SHARED = "compressed already, with another model that has this layer"
_UNGRADED = "no gradient reaches it: nothing up to it is trained"
_ANY_FUNCTION = (
    "what its function's gradient needs is not known; tf_comptrain.Compress(layer) opts in where it bears a small "
    "error of the input, tf_comptrain.Recompute(layer) holds the exact input alone"
)
_IMAGES = (
    "where a gradient goes through it, it is held as plain Keras does; tf_comptrain.Recompute(layer) holds its "
    "input alone"
)
# These call their inner layers in loops of their own, where a tensor has one handle for many steps.
_IN_A_LOOP = (
    "its states are made in a loop of TensorFlow's, which keeps them; tf_comptrain.Recompute(layer) holds "
    "its input alone"
)
_OPAQUE = tuple(
    getattr(keras.layers, name)
    for name in ("RNN", "Bidirectional", "TimeDistributed", "StackedRNNCells")
    if hasattr(keras.layers, name)
)


class Plan(NamedTuple):
    """What will happen to one layer, or operation of a functional graph: a storage, and the rule.

    No rule where it stays plain; then the reason. Idle is what no gradient reaches when the model is
    trained: its rule waits for a tape that watches what it reads.
    """

    layer: Any
    path: str
    storage: str
    rule: Rule | None
    reason: str = ""
    idle: bool = False


def is_told_by_step(plan: Plan) -> bool:
    """Whether a traced step says more of a layer than its plan: that has no rule for it, and nobody asked for that."""
    return plan.rule is None and plan.reason not in (
        KEPT_BY_CHOICE,
        _IN_A_LOOP,
        _RECOMPUTED,
        _SHARED,
        _WRAPPED,
    )


def plan_model(model: keras.Model, storage: StorageChoice) -> list[Plan]:
    """What `compress_model` will do with each layer and operation, in the order of the model; changes nothing.

    Raises:
      TypeError: `storage` of the wrong type.
      ValueError: An unknown storage or layer name, or a layer whose `call` was overridden by hand.
    """
    leaves = list(_leaves(model, ""))
    choose = _chooser(storage, leaves)
    plans = []
    ungraded = _keras.ungraded(model)
    wrappers = [layer for layer in _keras.sublayers(model) if getattr(layer, "recomputes", False)]
    recomputed = {id(layer) for wrapper in wrappers for layer in _keras.sublayers(wrapper)}
    for path, layer, opaque in leaves:
        overrides = [vars(layer)[method] for method in METHODS if _keras.has_own_call(layer, method)]
        if overrides and all(getattr(override, "compresses", False) for override in overrides):
            plans.append(Plan(layer, path, COMPRESS, None, _SHARED))
            continue
        if overrides:
            raise ValueError(
                f"Layer {path!r} has a `call` of its own, set on the instance: {overrides[0]!r}. compress_model "
                "overrides `call` itself: delete that attribute, or define it in a subclass."
            )
        plan = _plan_layer(path, layer, opaque, choose(path, layer))
        if not opaque and id(layer) in ungraded:
            plan = plan._replace(reason=_UNGRADED, idle=True)
            if plan.rule is None:
                plan = plan._replace(storage=NOTHING)
        elif plan.rule is None and id(layer) in recomputed:
            plan = plan._replace(storage=RECOMPUTE, reason=_RECOMPUTED)
        plans.append(plan)
    return _drop_tensors_kept_anyway(model, plans)


def _leaves(layer: keras.layers.Layer, prefix: str):
    """(path, layer, why it is opaque) of the innermost layers that rules may apply to, each once."""
    seen = set()
    for child in _keras.direct_sublayers(layer):
        path = f"{prefix}{child.name}"
        inner = _keras.direct_sublayers(child)
        opaque = ""
        if isinstance(child, _OPAQUE):
            opaque = _IN_A_LOOP
        elif getattr(child, "handles_storage", False):
            opaque = _WRAPPED
        rule = find_rule(child)
        found = list(_leaves(child, f"{path}/")) if inner and not opaque and not _is_leaf(rule) else []
        if rule is not None:
            found = [item for item in found if not isinstance(item[1], rule.covers)]
        if not found or rule is not None:
            found.append((path, child, opaque))
        for item in found:
            if id(item[1]) not in seen:
                seen.add(id(item[1]))
                yield item
    for operation in _keras.graph_operations(layer):
        if id(operation) not in seen:
            yield f"{prefix}{operation.name}", operation, ""


def _is_leaf(rule: Rule | None) -> bool:
    return rule is not None and rule.method == "call"


def _chooser(storage: StorageChoice, leaves: list):
    """(path, layer) -> the user's storage for it, or None."""
    if storage is None:
        return lambda path, layer: None
    if isinstance(storage, str):
        _check_choice(storage)
        return lambda path, layer: storage
    if isinstance(storage, Mapping):
        known = {name for path, layer, _ in leaves for name in (path, layer.name, type(layer))}
        for key, value in storage.items():
            _check_choice(value)
            if key not in known and not (isinstance(key, type) and any(isinstance(k, type) for k in known)):
                raise ValueError(
                    f"`storage` names a layer that the model does not have. Received: {key!r}. "
                    "Keys are layer names, paths as the report shows them, or layer classes."
                )
        choices = dict(storage)

        def from_mapping(path, layer):
            for key in (path, layer.name, type(layer)):
                if key in choices:
                    _check_offered(path, layer, choices[key])
                    return choices[key]
            return None

        return from_mapping
    if callable(storage):

        def from_function(path, layer):
            choice = storage(layer)
            if choice is not None:
                _check_choice(choice)
            return choice

        return from_function
    raise TypeError(
        "`storage` must be None, a string, a mapping from layers to strings or a function from a layer to "
        f"a string. Received: {storage!r} (of type {type(storage).__name__})."
    )


def _check_choice(choice: Any) -> None:
    if choice not in _CHOICES:
        raise ValueError(f"`storage` must be one of {', '.join(map(repr, _CHOICES))}. Received: {choice!r}.")


def _check_offered(path: str, layer: Any, choice: str) -> None:
    rule = find_rule(layer)
    offered = (*rule.storages, COMPRESS, KEEP) if rule else _CHOICES
    if choice not in offered:
        raise ValueError(
            f"`storage` gives {path!r} ({type(layer).__name__}) a storage that it does not have. Received: "
            f"{choice!r}. It can be held as {', '.join(map(repr, dict.fromkeys(offered)))}."
        )


def _plan_layer(path: str, layer: keras.layers.Layer, opaque: str, choice: str | None) -> Plan:
    rule = None if opaque else find_rule(layer)
    if choice == KEEP:
        return Plan(layer, path, KEEP, None, KEPT_BY_CHOICE)
    if rule is None:
        return Plan(layer, path, KEEP, None, opaque or _why_no_rule(layer))
    obstacle = rule.obstacle(layer)
    if obstacle:
        return Plan(layer, path, KEEP, None, obstacle)
    return Plan(layer, path, choice if choice in rule.storages else rule.storages[0], rule)


def _why_no_rule(layer: Any) -> str:
    if isinstance(layer, keras.layers.Lambda):
        return _ANY_FUNCTION
    if isinstance(layer, _keras.image_layers()):
        return _IMAGES
    reason = f"no rule for {type(layer).__name__}"
    return (
        f"{reason}; tf_comptrain.Compress(layer) opts in" if isinstance(layer, keras.layers.Layer) else reason
    )


def _drop_tensors_kept_anyway(model: keras.Model, plans: list[Plan]) -> list[Plan]:
    """A tensor that some consumer keeps as it is gains nothing from being compressed as well."""
    by_layer = {id(plan.layer): plan for plan in plans}
    consumers: dict[int, list] = {}
    for operation, inputs, _ in _keras.all_graph_calls(model):
        for x in inputs:
            consumers.setdefault(id(x), []).append(operation)

    def keeps_input(operation: Any) -> bool:
        plan = by_layer.get(id(operation))
        if plan is None:
            return isinstance(operation, keras.layers.Layer) and not isinstance(operation, keras.Model)
        return plan.rule is None and _saves_input(plan)

    dropped: dict[int, Plan] = {}
    for operations in consumers.values():
        keeper = next(filter(keeps_input, operations), None)
        for operation in operations:
            plan = by_layer.get(id(operation))
            if keeper is None or plan is None or plan.rule is None:
                continue
            saves = plan.rule.saves(plan.layer, plan.storage)
            if any(save.of == "input" and save.storage == COMPRESS for save in saves):
                reason = f"{keeper.name} keeps the same tensor"
                dropped[id(plan.layer)] = Plan(plan.layer, plan.path, KEEP, None, reason)
    return [dropped.get(id(plan.layer), plan) for plan in plans]


def _saves_input(plan: Plan) -> bool:
    """Whether a kept layer's plain gradient reads its input; unknown code is taken to do so."""
    if plan.storage != KEEP:
        return False
    rule = find_rule(plan.layer)
    if rule is None:
        return not isinstance(plan.layer, keras.layers.InputLayer)
    if rule.obstacle(plan.layer) and not getattr(plan.layer, "trainable", True):
        return False
    return any(save.of == "input" for save in rule.saves(plan.layer, rule.storages[0]))
