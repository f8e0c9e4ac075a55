"""What an optimizer does to one weight: as Keras has it, or by one operation of TensorFlow that works in place.

Seen with Keras 3.15. Of other optimizers, of weights that are spread over replicas and of sparse gradients the updates
are Keras'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain._keras.version import KERAS_3

# TensorFlow's operation computes 1 - beta in float32: 1.3e-5 off at 0.999, 1.7e-4 at 0.9999.
_BETA_TOLERANCE = 1e-4


class WeightUpdate:
    """An optimizer's update of weights; called with gradient, weight and learning rate.

    Args:
      optimizer: Keras'.

    Private: `TFOptimizer._apply_weight_decay`, `BaseOptimizer._use_weight_decay` (Keras 3.15).
    """

    def __init__(self, optimizer: Any):
        self._optimizer = optimizer
        self._to_decay: set[int] = set()  # by ids of handles

    def __call__(self, gradient: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        """As Keras has it, to the bit."""
        self._decay(variable)
        return type(self._optimizer).update_step(self._optimizer, gradient, variable, *args, **kwargs)

    def in_place(self, gradient: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        """By one operation where there is one: the same but for rounding, without tensors of the weight's size."""
        kernel = _kernel_of(self._optimizer) if _is_one(variable, gradient) else None
        slots = _slots(self._optimizer, variable) if kernel is not None else []
        if kernel is None or any(slot.device != variable.device for slot in slots):
            return self(gradient, variable, *args, **kwargs)
        self._decay(variable)
        handles = [each.handle for each in (variable, *slots)]
        (rate,) = (*args, *kwargs.values())
        return kernel(self._optimizer, handles, tf.cast(gradient, tf.float32), tf.cast(rate, tf.float32))

    def decay_with_updates(self, variables: Sequence[Any]) -> None:
        """Has each weight decay with its own update; in place of what decays all of them."""
        handles = [id(part.handle) for variable in variables for part in parts_of(variable)]
        if len(set(handles)) < len(handles):  # a weight that is there twice decays twice before its updates
            type(self._optimizer)._apply_weight_decay(self._optimizer, variables)
        else:
            self._to_decay = set(handles)

    def _decay(self, variable: Any) -> None:
        """What `TFOptimizer._apply_weight_decay` does to a weight."""
        handle, optimizer = id(getattr(variable, "handle", None)), self._optimizer
        if handle not in self._to_decay:
            return
        self._to_decay.remove(handle)
        if optimizer.weight_decay is not None and optimizer._use_weight_decay(variable):
            rate, decay = (
                tf.cast(value, variable.dtype) for value in (optimizer.learning_rate, optimizer.weight_decay)
            )
            variable.assign_sub(variable * decay * rate)


def decays_all_at_once(optimizer: Any) -> bool:
    """Whether weights decay all at once before their updates, by Keras' own rule of one weight each.

    Private: `TFOptimizer._apply_weight_decay` (Keras 3.15).
    """
    if not KERAS_3:
        return False
    return type(optimizer)._apply_weight_decay is keras.optimizers.SGD._apply_weight_decay


def parts_of(variable: Any) -> list[tf.Variable]:
    """The TensorFlow variables behind one of Keras: one for each replica that has its own."""
    value = variable.value if KERAS_3 and isinstance(variable, keras.Variable) else variable
    return list(value.values) if isinstance(value, tf.distribute.DistributedValues) else [value]


def by_handle(variables: Iterable[Any]) -> dict[int, Any]:
    """Variables of Keras by the ids of the handles of all their parts."""
    return {id(part.handle): variable for variable in variables for part in parts_of(variable)}


def _is_one(variable: Any, gradient: Any) -> bool:
    """Whether a weight is one variable, of a type that the operations take, and its gradient one tensor."""
    if not KERAS_3 or tf.distribute.has_strategy() or isinstance(gradient, tf.IndexedSlices):
        return False
    if not isinstance(variable, tf.Variable) or variable.dtype != tf.float32:
        return False
    # One that broadcasts is Keras'.
    return gradient.shape.is_fully_defined() and gradient.shape == variable.shape


def _kernel_of(optimizer: Any) -> Callable[..., Any] | None:
    """An optimizer's update of a weight as one operation; None where there is none that computes the same."""
    if getattr(optimizer, "amsgrad", False):
        return None
    betas = (getattr(optimizer, name, 0.0) for name in ("beta_1", "beta_2"))
    is_exact = all(abs(float(1 - np.float32(b)) - (1 - b)) <= _BETA_TOLERANCE * (1 - b) for b in betas)
    return _KERNELS.get(type(optimizer)) if is_exact else None


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
    step = tf.cast(optimizer.iterations + 1, tf.float32)
    first, second = (
        tf.pow(tf.constant(beta, tf.float32), step) for beta in (optimizer.beta_1, optimizer.beta_2)
    )
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
