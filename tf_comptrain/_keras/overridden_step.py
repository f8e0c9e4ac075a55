"""A train step that runs in the place of a model's own, and says how weights are updated."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow import keras

from tf_comptrain._keras.scopes import training_scope
from tf_comptrain._keras.weight_updates import WeightUpdate, decays_all_at_once

# Attributes of a model whose train step is overridden.
_OVERRIDDEN = ("train_step", "_comptrain_own_step", "_comptrain_update", "_comptrain_exact")


def has_own_train_step(model: keras.Model) -> bool:
    """Whether the model, or its class, has a train step that is not Keras'."""
    return step_of_instance(model) is not None or type(model).train_step is not keras.Model.train_step


def is_overridden(model: keras.Model) -> bool:
    """Whether the model's train step is that of `override_train_step`."""
    return "_comptrain_update" in model.__dict__


def step_of_instance(model: keras.Model) -> Callable[..., Any] | None:
    """The train step that was set on the model itself, which ours stands in front of."""
    set_here = "_comptrain_own_step" if is_overridden(model) else "train_step"
    return model.__dict__.get(set_here)


def override_train_step(model: keras.Model, update: Callable[..., Any], is_exact: bool = True) -> None:
    """Says of all that the model's train step calls that it is training, and has each weight updated by `update`.

    Args:
      model: The model.
      update: Called with a `WeightUpdate`, and what that takes: gradient, weight, learning rate.
      is_exact: Whether all weights decay before the first update, as Keras has it; else each before its own.
    """
    reference, own = weakref.ref(model), step_of_instance(model)

    def train_step(*args: Any, **kwargs: Any) -> Any:
        model: Any = reference()
        with step_scope(model):
            if own is not None and "_comptrain_step" not in model.__dict__:
                return own(*args, **kwargs)
            step = model.__dict__.get("_comptrain_step", type(model).train_step)
            return step(model, *args, **kwargs)

    model.__dict__["_comptrain_own_step"] = own
    model.__dict__["train_step"] = train_step
    model.__dict__["_comptrain_update"] = update
    model.__dict__["_comptrain_exact"] = is_exact


@contextlib.contextmanager
def step_scope(model: Any) -> Iterator[None]:
    """Inside, the optimizer updates weights by the model's `update`.

    Private: `BaseOptimizer._apply_weight_decay` (Keras 3.15).
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if optimizer is not None:
        update = model.__dict__["_comptrain_update"]
        decays = not model.__dict__.get("_comptrain_exact", True) and decays_all_at_once(optimizer)
        update_step = WeightUpdate(optimizer)
        optimizer.__dict__["update_step"] = functools.partial(update, update_step)
        if decays:
            optimizer.__dict__["_apply_weight_decay"] = update_step.decay_with_updates
    try:
        with training_scope():
            yield
    finally:
        if optimizer is not None:
            for name in ("update_step", "_apply_weight_decay"):
                optimizer.__dict__.pop(name, None)


def reset_train_step(model: keras.Model) -> None:
    if "_comptrain_step" not in model.__dict__:  # of a model that is placed on stages
        own = step_of_instance(model)
        for name in _OVERRIDDEN:
            model.__dict__.pop(name, None)
        if own is not None:
            model.__dict__["train_step"] = own


@contextlib.contextmanager
def plain_train_step(model: keras.Model) -> Iterator[None]:
    """Inside, the train step of a compressed model is the one that it had before."""
    before = {name: model.__dict__[name] for name in _OVERRIDDEN if name in model.__dict__}
    reset_train_step(model)
    try:
        yield
    finally:
        model.__dict__.update(before)
