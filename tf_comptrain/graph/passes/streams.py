"""The decision carried out in the forward pass: what is to be a stream is one, and the forward pass reads behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.crossings import Stream
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.passes.decision import StepDecision
from tf_comptrain.graph.passes.step import TracedStep
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import readers_of
from tf_comptrain.storage import KEEP, REBUILD


class HeldStreams(NamedTuple):
    """What holds the tensors of a step.

    Attributes:
      streams: By reference of a tensor.
      held_as: By reference of a tensor whose stream is new: the one of the forward pass that was encoded.
    """

    streams: Mapping[Any, Stream]
    held_as: Mapping[Any, tf.Tensor]

    def of(self, tensor: tf.Tensor) -> Any:
        """The stream of a tensor; None where it has none."""
        return self.streams.get(tensor.ref())


def make_streams(step: TracedStep, decision: StepDecision, streams: StreamsOfStep) -> HeldStreams:
    """Makes the streams that a step has decided on, each once for all gradients of the step.

    Args:
      step: The step.
      decision: How its tensors are held.
      streams: Makes them, and knows those of earlier gradients.
    """
    made: dict[Any, Stream] = {}
    held_as: dict[Any, tf.Tensor] = {}
    for reference, holding in decision.holdings.items():
        tensor = reference.deref()
        if holding.way == KEEP:
            streams.keep(tensor)
        elif holding.way != REBUILD:
            stream: Stream | None = streams.find(tensor)
            if stream is None:
                held_as[reference], stream = _hold(step, decision, streams, tensor)
            made[reference] = stream
    return HeldStreams(made, held_as)


def _hold(
    step: TracedStep, decision: StepDecision, streams: StreamsOfStep, tensor: tf.Tensor
) -> tuple[tf.Tensor, Stream]:
    holding = decision.holdings[tensor.ref()]
    with tf.device(tensor.op.device):
        readers, held_as = readers_of(tensor), _early(step, tensor)
        if held_as is not tensor:  # another operation, with a name of its own
            errors = decision.chosen.errors
            holding = streams.decide(held_as, errors.kind(tensor), holding.mask, errors.gain(tensor))
        through, stream = streams.hold(held_as, holding)
        redirect(readers, through)
    return held_as, stream


def _early(step: TracedStep, tensor: tf.Tensor) -> tf.Tensor:
    """The tensor as the forward pass can make it, where TensorFlow's gradient has it wait: 1 / x of a logarithm."""
    if not step.gradients.waits(tensor.op):
        return tensor
    return _keras.run_again(tensor.op, list(tensor.op.inputs), "early")[tensor.value_index]
