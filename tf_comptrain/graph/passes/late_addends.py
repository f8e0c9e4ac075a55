"""When the gradients of regularizers are made: with the gradient that they are added to."""

from __future__ import annotations

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.order import TopologicalOrder
from tf_comptrain.graph.passes.step import TracedStep
from tf_comptrain.graph.tensors import plain_bytes

_SUMS = ("AddN", "AddV2", "Add")
_LEAST_BYTES = 1 << 16
_MOST_OPERATIONS = 16  # that an addend is made by


def make_addends_late(step: TracedStep, order: TopologicalOrder) -> None:
    """Has what a sum adds to a gradient wait for that, where it is made of weights and small tensors alone.

    The gradient of a regularizer needs the weight and a number, so that the executor would make those of all weights
    when the backward pass begins.

    Args:
      step: The step.
      order: Of its gradient operations.
    """
    for op in step.backward.operations():
        if op.type not in _SUMS or op.name in step.at_once or plain_bytes(op.outputs[0]) < _LEAST_BYTES:
            continue
        makers = [_makers(tensor, op, step) for tensor in op.inputs]
        rest = [tensor.op for tensor, found in zip(op.inputs, makers) if not found and order.knows(tensor.op)]
        for found in makers:
            known = [maker for maker in found.values() if order.knows(maker)]
            if rest and all(order.put(before, maker) for before in rest for maker in known):
                for first in _first(found):
                    _keras.wait_for(first, rest)


def _makers(tensor: tf.Tensor, reader: tf.Operation, step: TracedStep) -> dict[str, tf.Operation]:
    """What makes an addend for one sum alone; nothing where it needs more than weights and small tensors."""
    found: dict[str, tf.Operation] = {}
    waiting = [tensor]
    while waiting:
        op = waiting.pop().op
        if op.name in found:
            continue
        found[op.name] = op
        row = about(op.type)
        is_cheap = (row.again or row.broadcasts) and not row.is_product and op.type != "Pow"
        if not (is_cheap and op.inputs and step.is_late(op)) or len(found) > _MOST_OPERATIONS:
            return {}  # TensorFlow's optimizer fails on a Pow that waits
        waiting += [
            each
            for each in op.inputs
            if plain_bytes(each) >= _LEAST_BYTES and each.op.type != "ReadVariableOp"
        ]
    readers = {each.name for op in found.values() for output in op.outputs for each in output.consumers()}
    return found if readers <= {reader.name, *found} else {}


def _first(makers: dict[str, tf.Operation]) -> list[tf.Operation]:
    """Those that read nothing that another of them makes."""
    return [op for op in makers.values() if not any(tensor.op.name in makers for tensor in op.inputs)]
