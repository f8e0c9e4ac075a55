"""What stands in for gradient operations that read bits, positions or streams instead of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tf_comptrain.graph.passes.decision import StepDecision
from tf_comptrain.graph.passes.needs import Needs
from tf_comptrain.graph.passes.step import TracedStep
from tf_comptrain.graph.passes.streams import HeldStreams
from tf_comptrain.graph.pooling import pooling_of
from tf_comptrain.graph.replacements import Replacements
from tf_comptrain.storage import BITMASK


class Positions(NamedTuple):
    """A max pooling that holds the positions of its maxima.

    Attributes:
      pooling: The pooling.
      gradient: Its gradient operation, which is no longer run.
      positions: What the new one reads.
    """

    pooling: tf.Operation
    gradient: tf.Operation
    positions: tf.Tensor


class Replaced(NamedTuple):
    """What stands in for what.

    Attributes:
      gradients: By name of a gradient that is no longer made: what stands in for it.
      moved: By name of a gradient operation whose product is looked for later: the one in its place.
      poolings: Those that hold positions.
    """

    gradients: dict[str, tf.Tensor]
    moved: Mapping[str, tf.Operation]
    poolings: tuple[Positions, ...]


def replace(
    step: TracedStep,
    needs: Needs,
    decision: StepDecision,
    held: HeldStreams,
    fenced: Mapping[str, tf.Tensor],
) -> Replaced:
    """Replaces gradient operations, after all others are in order: that is one of what the tape has made.

    Args:
      step: The step.
      needs: What is read.
      decision: How it is held.
      held: The streams.
      fenced: By name of a gradient: what stands in for it already.
    """
    replacements = Replacements(step.backward)
    for read, tensor, holding in decision.signs:
        if not replacements.mask_from_stream(read, held.of(tensor)) and holding.way == BITMASK:
            replacements.mask(read, tensor)
    for read in needs.sizes:
        replacements.blank(read)
    for read, stored in decision.normalizations:
        replacements.normalize(read, stored, held.of(stored))
    # Several gradients may be of one, which is another operation after the first.
    of_poolings = [(op, pooling_of(op, step.backward.xla)) for op in needs.poolings]
    poolings = tuple(Positions(*replacements.pool(*each)) for each in of_poolings)
    return Replaced({**fenced, **replacements.replaced}, replacements.moved, poolings)
