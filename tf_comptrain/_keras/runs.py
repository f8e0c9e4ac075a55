"""What stands around the compiled train function, and the gradient that a step takes, beside the step."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain._keras.train_step import call_in_training, loss_in_training, trainable_variables

# In a model's __dict__, past Keras' tracking of attributes.
_RUNS = "_comptrain_runs"


def around_runs(model: keras.Model, name: str, run: Callable[[Callable, Any], Any]) -> None:
    """From the next train function on, calls `run(train_function, iterator)` in its place.

    Several may stand around it, each under a name. `forget_runs` takes them back.
    """
    model.__dict__.setdefault(_RUNS, {})[name] = run
    reference = weakref.ref(model)

    def make_train_function(force: bool = False) -> Any:
        model: Any = reference()
        before = model.train_function
        type(model).make_train_function(model, force)
        if model.train_function is not before:
            for run in model.__dict__.get(_RUNS, {}).values():
                model.train_function = functools.partial(run, model.train_function)
        return model.train_function

    model.__dict__["make_train_function"] = make_train_function


def forget_runs(model: keras.Model, name: str | None = None) -> None:
    """From the next train function on, what `around_runs` was given under a name is not called; None: nothing is."""
    runs = model.__dict__.get(_RUNS, {})
    runs.pop(name, None)
    if name is None or not runs:
        model.__dict__.pop(_RUNS, None)
        model.__dict__.pop("make_train_function", None)


def after_first_steps(model: keras.Model, count: int, act: Callable[[], bool]) -> None:
    """Calls `act` once, after that many runs of the compiled train function; at True the function is traced anew.

    `forget_runs` takes it back.
    """
    reference = weakref.ref(model)
    runs = 0

    def counted(train_function: Callable, iterator: Any) -> Any:
        nonlocal runs
        logs = train_function(iterator)
        runs += 1
        model: Any = reference()
        if runs == count and model is not None:
            forget_runs(model, "first steps")
            if act():
                model.make_train_function(force=True)
        return logs

    around_runs(model, "first steps", counted)


def loss_gradients(model: keras.Model, data: Any) -> list:
    """Gradients of the trainable variables, as Keras' train step takes them; nothing is updated. Keras 3."""
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        # Keras looks for the values of these in the scope.
        regularized = [(v, v.value) for v in model.variables if v.regularizer is not None]
        with keras.StatelessScope(regularized, collect_losses=True):
            y_pred = call_in_training(model, x)
            loss = model.optimizer.scale_loss(loss_in_training(model, x, y, y_pred, weight))
    return tape.gradient(loss, trainable_variables(model))
