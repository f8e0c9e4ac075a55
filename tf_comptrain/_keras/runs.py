"""What stands around the compiled train function, and the gradient that a step takes, beside the step."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain._keras.layers import state_unknown_to_keras
from tf_comptrain._keras.train_step import has_own_train_step, trainable_variables
from tf_comptrain._keras.version import KERAS_3

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


def peeked(iterator: tf.data.Iterator, count: int) -> tuple[list, Any]:
    """The next batches of an iterator, and an iterator of the same type over them, for one run of a train function."""
    batches = list(itertools.islice(iterator, count))
    if not batches:
        return [], iterator

    def as_specified(*batch: Any) -> Any:
        # With the shapes that the train function was traced for: a batch of its own would be another trace.
        batch = batch[0] if len(batch) == 1 and not isinstance(iterator.element_spec, tuple) else batch
        return tf.nest.map_structure(
            lambda spec, tensor: tf.compat.v1.placeholder_with_default(tensor, spec.shape),
            iterator.element_spec,
            batch,
        )

    again: Any = tf.data.Dataset.from_tensors(batches[0])
    for batch in batches[1:]:
        again = again.concatenate(tf.data.Dataset.from_tensors(batch))
    return batches, iter(again.map(as_specified))


def loss_obstacle(model: keras.Model) -> str | None:
    """Why `loss_gradients` is not what the model's train step computes, or would change it; None where it is."""
    if not KERAS_3:
        return "Keras 2"
    if has_own_train_step(model) or "_comptrain_step" in model.__dict__:
        return "a train step of its own"
    if getattr(model, "_distribute_strategy", None) is not None:
        return "a distribution strategy"
    if model.run_eagerly:
        return "eager mode"
    if any(tensor.shape and tensor.shape[0] is not None for tensor in getattr(model, "inputs", None) or ()):
        return "a batch size that is part of the model"
    return state_unknown_to_keras(model)


def loss_gradients(model: keras.Model, data: Any) -> list:
    """Gradients of the trainable variables, as Keras' train step takes them; nothing is updated. Keras 3."""
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    training = {"training": True} if model._call_has_training_arg else {}
    with tf.GradientTape() as tape:
        # Keras looks for the values of these in the scope.
        regularized = [(v, v.value) for v in model.variables if v.regularizer is not None]
        with keras.StatelessScope(regularized, collect_losses=True):
            y_pred = model(x, **training)
            loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight, training=True)
            loss = model.optimizer.scale_loss(loss)
    return tape.gradient(loss, trainable_variables(model))
