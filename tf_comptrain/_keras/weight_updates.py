"""What an optimizer does to one weight: as Keras has it, or by one operation of TensorFlow that works in place.

Seen with Keras 3.15. Of other optimizers, of weights that are spread over replicas and of sparse gradients the updates
are Keras'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain._keras.version import KERAS_3

# In an optimizer's __dict__ while a step is traced: by graph, the powers of Adam's betas.
POWERS = "_comptrain_powers"


class WeightUpdate:
    """An optimizer's update of one weight; called with gradient, weight and learning rate.

    Args:
      optimizer: Keras'.
      decays: Whether the weight decays now, and not with all others before.
    """

    def __init__(self, optimizer: Any, decays: bool):
        self._optimizer, self._decays = optimizer, decays

    def __call__(self, gradient: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        """As Keras has it, to the bit."""
        if self._decays:
            _decay(self._optimizer, variable)
        return type(self._optimizer).update_step(self._optimizer, gradient, variable, *args, **kwargs)

    def in_place(self, gradient: Any, variable: Any, learning_rate: Any) -> Any:
        """By one operation where there is one: the same but for rounding, without tensors of the weight's size."""
        kernel = _KERNELS.get(type(self._optimizer)) if _is_one(variable, gradient) else None
        if kernel is None or getattr(self._optimizer, "amsgrad", False):
            return self(gradient, variable, learning_rate)
        if self._decays:
            _decay(self._optimizer, variable)
        return kernel(self._optimizer, gradient, variable, learning_rate)


def decays_all_at_once(optimizer: Any) -> bool:
    """Whether weights decay all at once before their updates, which are of one weight each.

    Private: `TFOptimizer._apply_weight_decay` (Keras 3.15).
    """
    own = getattr(type(optimizer), "_apply_weight_decay", None)
    return KERAS_3 and own is not None and own.__module__.startswith("keras.src.")


def _decay(optimizer: Any, variable: Any) -> None:
    """What `TFOptimizer._apply_weight_decay` does to a weight.

    Private: `BaseOptimizer._use_weight_decay` (Keras 3.15).
    """
    if optimizer.weight_decay is not None and optimizer._use_weight_decay(variable):
        rate, decay = (
            tf.cast(value, variable.dtype) for value in (optimizer.learning_rate, optimizer.weight_decay)
        )
        variable.assign_sub(variable * decay * rate)


def _is_one(variable: Any, gradient: Any) -> bool:
    """Whether a weight is one variable, of a type that the operations take, and its gradient one tensor."""
    if not KERAS_3 or tf.distribute.has_strategy() or isinstance(gradient, tf.IndexedSlices):
        return False
    return isinstance(variable, tf.Variable) and variable.dtype == tf.float32


def _adam(optimizer: Any, gradient: Any, variable: Any, rate: Any) -> Any:
    """Private: `Adam._momentums`, `Adam._velocities`, `BaseOptimizer._get_variable_index` (Keras 3.15)."""
    index = optimizer._get_variable_index(variable)
    first, second = _powers(optimizer)
    return tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=optimizer._momentums[index].value.handle,
        v=optimizer._velocities[index].value.handle,
        beta1_power=first,
        beta2_power=second,
        lr=tf.cast(rate, tf.float32),
        beta1=optimizer.beta_1,
        beta2=optimizer.beta_2,
        epsilon=optimizer.epsilon,
        grad=tf.cast(gradient, tf.float32),
        use_locking=True,
    )


def _powers(optimizer: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Of Adam's betas in this step, which all weights read."""
    graph = tf.compat.v1.get_default_graph()
    made = optimizer.__dict__.setdefault(POWERS, {})
    if graph not in made:
        with tf.control_dependencies(None):  # of the first weight's gradient
            step = tf.cast(optimizer.iterations + 1, tf.float32)
            made[graph] = tuple(
                tf.pow(tf.constant(beta, tf.float32), step) for beta in (optimizer.beta_1, optimizer.beta_2)
            )
    return made[graph]


def _sgd(optimizer: Any, gradient: Any, variable: Any, rate: Any) -> Any:
    """Private: `BaseOptimizer._get_variable_index` (Keras 3.15)."""
    rate, gradient = tf.cast(rate, tf.float32), tf.cast(gradient, tf.float32)
    if optimizer.momentum == 0:
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=rate, delta=gradient, use_locking=True
        )
    return tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=optimizer.momentums[optimizer._get_variable_index(variable)].value.handle,
        lr=rate,
        grad=gradient,
        momentum=optimizer.momentum,
        use_locking=True,
        use_nesterov=optimizer.nesterov,
    )


_KERNELS: dict[Any, Callable[..., Any]] = {
    keras.optimizers.Adam: _adam,
    keras.optimizers.AdamW: _adam,
    keras.optimizers.SGD: _sgd,
}
