"""Optimizers: their scale of the loss, momentum, learning-rate schedule and count of steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain._keras.version import KERAS_3


def loss_scale(optimizer: Any) -> float:
    """The factor that mixed precision puts on the loss, and so on every gradient of the backward pass."""
    if KERAS_3:
        return float(optimizer.scale_loss(tf.constant(1.0)))
    return float(getattr(optimizer, "loss_scale", 1.0))


def momentum_slot(optimizer: Any, variable: Any) -> Any:
    """What SGD or one of the Adam family keeps of a variable's earlier gradients.

    None where it keeps nothing of the kind, has not been built, or does not train the variable.

    Private: `Adam._momentums`, `Adamax._m` (Keras 3.15, 2.15); `Optimizer._get_variable_index` (Keras
      3.15); `Optimizer._index_dict`, `Optimizer._var_key` (Keras 2.15).
    """
    names = "momentums", "_momentums", "_m"  # of SGD, of the Adam family, and of Adamax
    slots = next(filter(None, (getattr(optimizer, name, None) for name in names)), None)
    if slots is None:
        return None
    try:
        if KERAS_3:
            return slots[optimizer._get_variable_index(variable)]
        return slots[optimizer._index_dict[optimizer._var_key(variable)]]
    except KeyError:
        return None


def has_schedule(optimizer: Any) -> bool:
    """Whether the learning rate follows a schedule, and so cannot be set.

    Private: `Optimizer._learning_rate` (Keras 3.15, 2.15).
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(optimizer, "_learning_rate", None)
    return isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)


def override_rate(optimizer: Any, rate: Callable[[Callable, tf.Tensor], tf.Tensor]) -> bool:
    """Makes the learning rate of an optimizer that has a schedule `rate(schedule, steps so far)`.

    The schedule itself, which is part of the optimizer's configuration, stays as it is.

    Args:
      optimizer: Whose learning rate is a schedule.
      rate: Called in every trace of a step.

    Returns:
      Whether that is new: traced train functions know nothing of it then. Else the first `rate` stays.

    Private: `Optimizer._get_current_learning_rate`, `Optimizer._learning_rate`, `Optimizer._iterations`
      (Keras 3.15).
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if "_get_current_learning_rate" in optimizer.__dict__:
        return False
    reference = weakref.ref(optimizer)

    def learning_rate() -> Any:
        optimizer: Any = reference()
        return rate(optimizer._learning_rate, tf.convert_to_tensor(optimizer._iterations))

    optimizer.__dict__["_get_current_learning_rate"] = learning_rate
    return True


def reset_rate(optimizer: Any) -> None:
    """Undoes `override_rate`.

    Private: `Optimizer._get_current_learning_rate` (Keras 3.15).
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if optimizer is not None:
        optimizer.__dict__.pop("_get_current_learning_rate", None)


def steps_of(optimizer: Any) -> int:
    """Steps so far, as a learning-rate schedule is given them; 0 of an optimizer that has not begun to count.

    Private: `Optimizer._iterations` (Keras 3.15, 2.15).
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return int(tf.convert_to_tensor(optimizer._iterations)) if optimizer._iterations is not None else 0
