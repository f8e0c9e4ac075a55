"""When the optimizer works: each weight is updated after its own gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_LONG = 1 << 14  # values


def is_short_vector(tensor: tf.Tensor) -> bool:
    """Whether a tensor is too small to wait for anything for its memory, as the gradient of a bias.

    TensorFlow's optimizer does not rewrite what others wait for: these are left to it, as in plain Keras.
    """
    return tensor.shape.rank == 1 and (tensor.shape[0] or _LONG) < _LONG


def after_gradient(update_step: Callable, gradient: Any, *args: Any, **kwargs: Any) -> Any:
    """Computes a weight's update after its gradient.

    Parts of an update that read no gradient (momentum * m) otherwise run at the start of the step, and take the
    size of the weights until its end.

    Args:
      update_step: The optimizer's.
      gradient: Its first argument.
      *args: The others.
      **kwargs: The others.
    """
    wait = getattr(gradient, "values", gradient)
    if not tf.executing_eagerly():
        # Keras joins all gradients in one IdentityN, which the optimized graph drops unless something
        # waits for it; what must be waited for is its input.
        while wait.op.type in ("Identity", "IdentityN"):
            wait = wait.op.inputs[wait.value_index]
    with tf.control_dependencies([] if is_short_vector(wait) else [wait]):
        return update_step(gradient, *args, **kwargs)
