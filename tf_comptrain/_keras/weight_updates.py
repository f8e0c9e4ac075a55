"""What an optimizer does to one weight: as Keras has it, or by one operation of TensorFlow that works in place.

Seen with Keras 3.15. Of other optimizers, of weights that are spread over replicas and of sparse gradients the updates
are Keras'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def in_place(self, gradient: Any, variable: Any, *learning_rate: Any) -> Any:
        """By one operation where there is one: the same but for rounding, without tensors of the weight's size."""
        kernel = None if getattr(self._optimizer, "amsgrad", False) else _KERNELS.get(type(self._optimizer))
        kernel = kernel if _is_one(variable, gradient) else None
        slots = _slots(self._optimizer, variable) if kernel is not None else []
        if kernel is None or any(slot.device != variable.device for slot in slots):
            return self(gradient, variable, *learning_rate)
        if self._decays:
            _decay(self._optimizer, variable)
        handles = [each.handle for each in (variable, *slots)]
        return kernel(
            self._optimizer, handles, tf.cast(gradient, tf.float32), tf.cast(learning_rate[0], tf.float32)
        )


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


def _slots(optimizer: Any, variable: Any) -> list[Any]:
    """What the optimizer holds for a weight, in the order of its operation.

    Private: `Adam._momentums`, `Adam._velocities`, `BaseOptimizer._get_variable_index` (Keras 3.15).
    """
    if isinstance(optimizer, keras.optimizers.Adam):
        lists = [optimizer._momentums, optimizer._velocities]
    else:
        lists = [optimizer.momentums] if optimizer.momentum else []
    return [slots[optimizer._get_variable_index(variable)].value for slots in lists]


def _adam(optimizer: Any, handles: Sequence[tf.Tensor], gradient: tf.Tensor, rate: tf.Tensor) -> Any:
    first, second = _powers(optimizer)
    return tf.raw_ops.ResourceApplyAdam(
        var=handles[0],
        m=handles[1],
        v=handles[2],
        beta1_power=first,
        beta2_power=second,
        lr=rate,
        beta1=optimizer.beta_1,
        beta2=optimizer.beta_2,
        epsilon=optimizer.epsilon,
        grad=gradient,
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


def _sgd(optimizer: Any, handles: Sequence[tf.Tensor], gradient: tf.Tensor, rate: tf.Tensor) -> Any:
    if not optimizer.momentum:
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=handles[0], alpha=rate, delta=gradient, use_locking=True
        )
    return tf.raw_ops.ResourceApplyKerasMomentum(
        var=handles[0],
        accum=handles[1],
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
