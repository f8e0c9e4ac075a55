"""What stands around the compiled train function, and the gradient that a step takes, beside the step."""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain._keras.layers import jit_compile
from tf_comptrain._keras.train_step import (
    call_in_training,
    has_strategy,
    loss_in_training,
    steps_at_once,
    trainable_variables,
)
from tf_comptrain._keras.version import KERAS_3
from tf_comptrain._keras.workers import optionals_as_none

# In a model's __dict__, past Keras' tracking of attributes.
_RUNS = "_comptrain_runs"


def _run(train_function: Callable, iterator: Any) -> Any:
    return train_function(iterator)


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


def after_first_steps(
    model: keras.Model,
    counts: Sequence[int],
    act: Callable[[int], bool],
    run: Callable[[Callable, Any], Any] = _run,
) -> None:
    """Calls `act(runs)` after each of these numbers of runs of the compiled train function, which ascend.

    At True the function is traced anew, and its runs are counted from 0. `forget_runs` takes it back. Until the last
    of these numbers `run(train_function, iterator)` is called in the place of the function.
    """
    reference = weakref.ref(model)
    runs = 0

    def counted(train_function: Callable, iterator: Any) -> Any:
        nonlocal runs
        logs = run(train_function, iterator)
        runs += 1
        model: Any = reference()
        if runs in counts and model is not None:
            if act(runs):
                runs = 0
                model.make_train_function(force=True)
            elif runs == counts[-1]:
                forget_runs(model, "first steps")
        return logs

    around_runs(model, "first steps", counted)


@contextlib.contextmanager
def step_hook(hook: Callable[[keras.Model, Callable, Any], Any]) -> Iterator[None]:
    """Inside, `hook(model, train_function, batch)` is called for each training step that is compiled. Keras 3.

    `train_function([batch])` runs the step, and its logs are to be returned. Train functions are made anew, with the
    hook, and end their use of it with this scope.
    """
    original_make = keras.Model.make_train_function
    hooks = [hook]
    fresh: weakref.WeakSet = weakref.WeakSet()

    def make_train_function(model: keras.Model, force: bool = False) -> Any:
        before = model.train_function
        original_make(model, force=force or model not in fresh)
        fresh.add(model)
        is_one = jit_compile(model) or not has_strategy(model)  # and not a part of it for each replica
        if model.train_function is not before and KERAS_3 and is_one and not model.run_eagerly:
            model.train_function = functools.partial(
                _step_by_step, hooks, weakref.ref(model), model.train_function
            )
        return model.train_function

    keras.Model.make_train_function = make_train_function
    try:
        yield
    finally:
        keras.Model.make_train_function = original_make
        hooks.clear()


def _step_by_step(hooks: list, model: Callable, train_function: Callable, iterator: Any) -> Any:
    """Logs of the last of the steps that one call of the train function takes."""
    if not hooks:
        return train_function(iterator)
    logs = None
    for _ in range(steps_at_once(model())):
        try:
            batch = next(iterator)
        except StopIteration:
            if logs is None:
                raise
            break
        batch = tf.nest.map_structure(_as_tensor, batch)
        logs = hooks[0](model(), train_function, batch)
    return logs


def _as_tensor(part: Any) -> Any:
    """`train_on_batch` gives arrays."""
    return tf.convert_to_tensor(part) if isinstance(part, (np.ndarray, np.generic)) else part


def lowered_step(model: keras.Model, train_function: Callable, batch: Any) -> bytes:
    """One step of a train function for a batch of tensors as a program of XLA's, an HloModuleProto; Keras 3.

    It is traced at most once for that and for running it.

    Private: `one_step_on_data` of `Model.make_train_function` (Keras 3.15).
    """
    step = inspect.getclosurevars(train_function).nonlocals["one_step_on_data"].__wrapped__
    data: list = []
    optionals_as_none(model, data.append)(batch)
    return step.experimental_get_compiler_ir(*data)(stage="hlo_serialized")


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
