"""The accumulated gradient that an optimizer's momentum is, whatever the optimizer keeps of it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras

_ADAM_FAMILY = tuple(
    getattr(keras.optimizers, name)
    for name in ("Adam", "AdamW", "Nadam", "Adamax", "Lamb")
    if hasattr(keras.optimizers, name)
)


def accumulated_gradient(optimizer: Any, variable: Any) -> tuple[Any, float] | None:
    """The optimizer's momentum slot of a trainable variable, and the factor that makes it

        M_t = g_t + mu M_(t-1):

    SGD keeps -learning_rate * M (Keras 2's SGD too), the Adam family (1 - beta_1) * M. None for
    optimizers that keep no such slot, have none yet, or do not train the variable.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(optimizer, keras.optimizers.SGD):
        rate = float(tf.convert_to_tensor(optimizer.learning_rate))
        factor = 1.0 / rate if rate > 0 else 0.0
    elif isinstance(optimizer, _ADAM_FAMILY):
        factor = 1.0 / (1.0 - float(optimizer.beta_1))
    else:
        return None
    slot = _keras.momentum_slot(optimizer, variable) if factor else None
    return None if slot is None else (slot, factor)
