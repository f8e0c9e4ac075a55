"""tf.custom_gradient without its leak.

Private: `ops.gradient_registry`, `FuncGraph` (TensorFlow 2.21, 2.15).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.framework.func_graph import FuncGraph


def custom_gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    """As tf.custom_gradient, for an fn of tensors; what its gradient function names ends with the graph.

    TensorFlow registers the gradient function of each call in a traced graph for the life of the process,
    and with it the graph, the layer and the weights. Here the graphs that may ask for it hold it.
    """
    differentiable = tf.custom_gradient(fn)

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        results = differentiable(*args)
        if not tf.executing_eagerly():
            _hand_to_graph(tf.nest.flatten(results)[0].op)
        return results

    return call


def _hand_to_graph(operation: tf.Operation) -> None:
    """Lets the graphs around an operation, and no longer the registry, hold its gradient function.

    Private: `Registry._registry`, the attribute `_gradient_op_type` of operations (TensorFlow 2.21, 2.15).
    """
    if not isinstance(operation.graph, FuncGraph):
        return
    registered = tf_ops.gradient_registry._registry
    name = operation.get_attr("_gradient_op_type").decode()
    gradient = registered[name]["type"]
    # A function's graph can outlive the one it was traced in, and the branch of a condition be read
    # again from the graph around it: each holds it.
    graph = operation.graph
    while isinstance(graph, FuncGraph):
        if not hasattr(graph, "_comptrain_gradients"):
            graph._comptrain_gradients = []
        graph._comptrain_gradients.append(gradient)
        graph = graph.outer_graph
    registered[name]["type"] = _weakly(gradient)
    weakref.finalize(gradient, registered.pop, name, None).atexit = False


def _weakly(fn: Callable[..., Any]) -> Callable[..., Any]:
    reference = weakref.ref(fn)

    def call(*args: Any) -> Any:
        gradient: Any = reference()
        return gradient(*args)

    return call
