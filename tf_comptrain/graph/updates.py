"""When the optimizer works: each weight is updated after its own gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.tensors import plain_bytes

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
    if is_short_vector(wait) or tf.executing_eagerly():
        return update_step(gradient, *args, **kwargs)
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    with tf.control_dependencies([wait]):
        result = update_step(gradient, *args, **kwargs)
    _run_in_turn(graph.get_operations()[before:])
    return result


def _run_in_turn(operations: Iterable[tf.Operation]) -> None:
    """Has an update make what it assigns to one slot when the slot before has its own.

    The executor would make what all slots need at once: of Adam and a sparse gradient five tensors of a weight's size.

    Args:
      operations: Of the update, as they were made.
    """
    last = None
    waiting: set[str] = set()  # by name, what comes after the last assignment
    for op in operations:
        if op.type.startswith("Assign") and op.type.endswith("VariableOp"):
            last, waiting = op, set()
        elif last is not None:
            waits = any(tensor.op.name in waiting for tensor in op.inputs)
            if not waits and any(plain_bytes(output) >= 4 * _LONG for output in op.outputs):
                _keras.wait_for(op, [last])
                waits = True
            if waits:
                waiting.add(op.name)
