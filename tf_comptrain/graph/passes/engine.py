"""Where the executor and XLA differ: each has its own of these passes, and a step takes one engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_comptrain.graph.gradient_operations import GradientRead
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.operations import PASSED, about
from tf_comptrain.graph.order import TopologicalOrder
from tf_comptrain.graph.passes.step import TracedStep
from tf_comptrain.graph.tensors import base_of, is_small, plain_bytes, readers_of

_DRAWN_BY_KEY = frozenset(
    ("StatelessRandomNormalV2", "StatelessRandomUniformV2", "StatelessTruncatedNormalV2")
)


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


def drawn_numbers(step: TracedStep) -> Iterator[tuple[tf.Operation, tf.Tensor]]:
    """What draws random numbers by a key in the forward pass, and the tensor that these meet first.

    They depend on a seed alone, so that an engine may draw those of many layers before it runs the first.
    """
    for op in step.backward.graph.get_operations()[: step.backward.start]:
        if op.type in _DRAWN_BY_KEY and not is_small(op.outputs[0]):
            met = _met(step, op)
            if met is not None:
                yield op, met


def _met(step: TracedStep, drawn: tf.Operation) -> tf.Tensor | None:
    """The tensor, made before, that random numbers meet first, by elementwise operations; None where there is none."""
    place, size = step.places[drawn.name], drawn.outputs[0].shape
    waiting, seen = list(drawn.outputs), {drawn.name}
    while waiting:
        for op, _ in readers_of(waiting.pop(0)):
            row = about(op.type)
            is_held = row.kind == PASSED  # what reads them reads the holding's first output
            if op.name in seen or not is_held and (step.is_late(op) or not row.is_elementwise):
                continue
            seen.add(op.name)
            for other in op.inputs:
                # An operation reads what was made before it: such a tensor does not wait for the random numbers.
                if step.places.get(base_of(other).op.name, place) < place and other.shape == size:
                    return _narrow(step, other)
            waiting += op.outputs
    return None


def _narrow(step: TracedStep, tensor: tf.Tensor) -> tf.Tensor:
    """The factor of the product that a tensor comes of which never is there whole; any other tensor itself."""
    waiting, seen = [tensor.op], {tensor.op.name}
    while waiting and waiting[0].name in step.again:
        op = waiting.pop(0)
        if about(op.type).is_product:
            return op.inputs[0]
        before = [operand.op for operand in op.inputs if operand.op.name in step.again]
        waiting += [each for each in before if each.name not in seen]
        seen.update(each.name for each in before)
    return tensor
