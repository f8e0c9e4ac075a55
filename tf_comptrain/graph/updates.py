"""When the optimizer works: each weight is updated after its own gradient, and before the next one's is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.order import TopologicalOrder, as_made, names_of_run
from tf_comptrain.graph.tensors import plain_bytes, values_of

_LONG = 1 << 14  # values


class _Update(NamedTuple):
    """One weight's.

    Attributes:
      gradient: What makes the gradient that it waits for.
      assignments: In their order.
    """

    gradient: tf.Operation
    assignments: tuple[tf.Operation, ...]


def is_short_vector(tensor: tf.Tensor) -> bool:
    """Whether a tensor is too small to wait for anything for its memory, as the gradient of a bias.

    TensorFlow's optimizer does not rewrite what others wait for: these are left to it, as in plain Keras.
    """
    return tensor.shape.rank == 1 and (tensor.shape[0] or _LONG) < _LONG


def after_gradient(update_step: Callable, gradient: Any, *args: Any, **kwargs: Any) -> Any:
    """Computes a weight's update after its gradient, with the bits that plain Keras has.

    Parts of an update that read no gradient (momentum * m) otherwise run at the start of the step, and take the
    size of the weights until its end.

    Args:
      update_step: The optimizer's.
      gradient: Its first argument.
      *args: The others.
      **kwargs: The others.
    """
    if tf.executing_eagerly():
        return update_step(gradient, *args, **kwargs)
    wait = values_of(_by_itself(gradient))
    with tf.control_dependencies([] if is_short_vector(wait) else [wait]):
        return update_step(gradient, *args, **kwargs)


def in_place(update_step: _keras.WeightUpdate, gradient: Any, *args: Any, **kwargs: Any) -> Any:
    """Computes a weight's update as soon as may be, in its own memory where TensorFlow has an operation for it.

    TensorFlow's optimizer leaves what waits as it is, so that roundings may differ from plain Keras'.

    Args:
      update_step: The optimizer's.
      gradient: Its first argument.
      *args: The others.
      **kwargs: The others.
    """
    if tf.executing_eagerly() or _keras.under_xla():
        return after_gradient(update_step, gradient, *args, **kwargs)
    gradient = _by_itself(gradient)
    wait = values_of(gradient)
    if is_short_vector(wait):
        return update_step.in_place(gradient, *args, **kwargs)
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    with tf.control_dependencies([wait]):
        result = update_step.in_place(gradient, *args, **kwargs)
    assignments = _run_in_turn(graph.get_operations()[before:])
    if assignments and wait.op.graph is graph:
        _updates_of(graph).append(_Update(wait.op, assignments))
        _keras.when_ordered(graph, _pace)
    return result


def _updates_of(graph: tf.Graph) -> list[_Update]:
    return _keras.kept_with(graph, _Update, list)


def _by_itself(gradient: Any) -> Any:
    """A gradient that does not wait for those of all other weights, with which Keras joins it in one IdentityN."""
    if isinstance(gradient, tf.IndexedSlices):
        values = _by_itself(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    while gradient.op.type in ("Identity", "IdentityN") and not gradient.op.control_inputs:
        gradient = gradient.op.inputs[gradient.value_index]
    return gradient


def _run_in_turn(operations: Iterable[tf.Operation]) -> tuple[tf.Operation, ...]:
    """Has an update make what it assigns to one slot when the slot before has its own.

    The executor would make what all slots need at once: of Adam and a sparse gradient five tensors of a weight's size.

    Args:
      operations: Of the update, as they were made.

    Returns:
      The assignments.
    """
    last, assignments = None, []
    waiting: set[str] = set()  # by name, what comes after the last assignment
    for op in operations:
        if _assigns(op):
            last, waiting = op, set()
            assignments.append(op)
        elif last is not None:
            waits = any(tensor.op.name in waiting for tensor in op.inputs)
            if not waits and any(plain_bytes(output) >= 4 * _LONG for output in op.outputs):
                _keras.wait_for(op, [last])
                waits = True
            if waits:
                waiting.add(op.name)
    return tuple(assignments)


def _assigns(op: tf.Operation) -> bool:
    return (
        op.type.startswith("ResourceApply") or op.type.startswith("Assign") and op.type.endswith("VariableOp")
    )


def _pace(graph: tf.Graph, returned: Sequence[tf.Tensor]) -> None:
    """Has each weight updated in place, and before the gradient of the next weight is made.

    To be done when TensorFlow has ordered what touches the same variables: what reads a weight's new value comes after
    the update.

    The executor would let gradients wait while it goes on with the backward pass; and an update that comes before the
    weight's last reader makes the new value beside the old one.
    """
    operations = graph.get_operations()
    order = TopologicalOrder(as_made(operations))
    live, readers = names_of_run(operations, returned), _readers_of_values(operations)
    updates = sorted(_updates_of(graph), key=lambda update: order.place(update.gradient))
    for update in updates:
        for op in update.assignments:
            some = [reader for reader in readers[op.name] if reader.name in live and order.put(reader, op)]
            if some:
                _keras.wait_for(op, some)
    for update, following in zip(updates, updates[1:]):
        last, product = update.assignments[-1], _product(following.gradient)
        if order.put(last, product):
            _keras.wait_for(product, [last])


def _product(gradient: tf.Operation) -> tf.Operation:
    """What makes a gradient, before it is added up over samples and brought into shape."""
    while about(gradient.type).is_view or gradient.type == "Sum":
        gradient = gradient.inputs[0].op
    return gradient


def _readers_of_values(operations: Iterable[tf.Operation]) -> dict[str, list[tf.Operation]]:
    """By the name of an assignment: what computes with the value that it overwrites.

    Args:
      operations: As they were made; TensorFlow runs what touches a variable in that order.
    """
    of_handle: dict[str, list[tf.Operation]] = {}
    found: dict[str, list[tf.Operation]] = {}
    for op in operations:
        if op.type == "ReadVariableOp":
            of_handle.setdefault(op.inputs[0].name, []).extend(op.outputs[0].consumers())
        elif _assigns(op):
            found[op.name] = of_handle.pop(op.inputs[0].name, [])
    return found
