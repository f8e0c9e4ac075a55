"""Where the executor and XLA differ: each has its own of these passes, and a step takes one engine's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_comptrain.graph.gradient_operations import GradientRead
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.order import TopologicalOrder
from tf_comptrain.graph.passes.step import TracedStep
from tf_comptrain.graph.tensors import plain_bytes


class GateReaders(NamedTuple):
    """The readers of one incoming gradient.

    Attributes:
      gate: The gradient.
      first: Those that something was restored for.
      products: Of these the products, those with the largest tensors before the others.
      others: What else reads the gradient, in whatever shape.
    """

    gate: tf.Tensor
    first: tuple[tf.Operation, ...]
    products: tuple[tf.Operation, ...]
    others: tuple[tf.Operation, ...]


class EnginePasses(NamedTuple):
    """What one engine does its own way.

    Attributes:
      late: (tensor, gradient) -> the tensor, once the gradient is there.
      order: Puts the readers of a gradient in order; by name of a gradient what stands in for it then.
      order_sums: Puts what is added to a gradient in order.
      finish: Done to a step that is rewired.
    """

    late: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    order: Callable[[TracedStep, TopologicalOrder, GateReaders], dict[str, tf.Tensor]]
    order_sums: Callable[[TracedStep, TopologicalOrder], None]
    finish: Callable[[TracedStep, StreamsOfStep], None]


def readers_of_gate(step: TracedStep, gate: tf.Tensor, reads: Sequence[GradientRead]) -> GateReaders:
    """The readers of a gradient, of which some had something restored: `reads`."""
    products: dict[str, tuple[int, tf.Operation]] = {}
    for read in reads:
        if not about(read.op.type).hands_on:
            size, _ = products.get(read.op.name, (0, read.op))
            products[read.op.name] = (size + plain_bytes(read.tensor), read.op)
    in_turn = tuple(op for _, op in sorted(products.values(), key=lambda item: -item[0]))
    first = {read.op.name: read.op for read in reads}
    others = tuple(op for op in step.gradients.readers_of_views(gate) if op.name not in first)
    return GateReaders(gate, tuple(first.values()), in_turn, others)
