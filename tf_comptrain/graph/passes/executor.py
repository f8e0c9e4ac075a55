"""The order of operations on TensorFlow's executor, which starts whatever it can: by control dependencies."""

from __future__ import annotations

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.broadcasts import narrow_broadcasts
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.order import TopologicalOrder
from tf_comptrain.graph.passes.engine import EnginePasses, GateReaders, drawn_numbers
from tf_comptrain.graph.passes.late_addends import make_addends_late
from tf_comptrain.graph.passes.step import TracedStep
from tf_comptrain.graph.updates import is_short_vector


def late(tensor: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """The tensor, once a gradient is there."""
    with tf.control_dependencies([gradient.op]):
        return tf.identity(tensor, name="late")


def order_readers(step: TracedStep, order: TopologicalOrder, readers: GateReaders) -> dict[str, tf.Tensor]:
    """What is restored for one reader of a gradient is freed before more is made of that gradient.

    The products with restored tensors run first, one after the other; then those of the gradient's other readers that
    end in the gradient of a weight; what leads on comes last, since a chain that runs ahead of them leaves a gradient
    behind in each layer.

    Returns:
      Nothing: all gradients stay.
    """
    for before, after in zip(readers.products, readers.products[1:]):
        if order.put(before, after):
            _keras.wait_for(after, [before])
    free = [op for op in readers.others if not step.gradients.is_joined(op)]
    ending = [op for op in free if step.gradients.ends(op)]
    for op in free:
        if all(map(is_short_vector, op.outputs)):
            continue
        earlier = [*readers.first, *([] if op in ending else ending)]
        if all(order.put(reader, op) for reader in earlier):
            _keras.wait_for(op, earlier)
    return {}


def finish(step: TracedStep, streams: StreamsOfStep) -> None:
    """Random numbers wait for what they meet; means have gradients without a tensor of equal values."""
    for op, met in drawn_numbers(step):
        if op.name not in step.at_once and op.name not in step.later:
            _keras.wait_for(op, [met.op])
    if not step.backward.recorded:
        narrow_broadcasts(step.backward, step.at_once)


EXECUTOR = EnginePasses(late, order_readers, make_addends_late, finish)
