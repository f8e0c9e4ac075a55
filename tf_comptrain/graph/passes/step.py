"""What a backward pass is, before anything of it is changed: what all passes read."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.gradient_operations import GradientOperations
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.tensors import plain_bytes


@dataclasses.dataclass(frozen=True)
class TracedStep:
    """One backward pass and the forward pass before it.

    Attributes:
      backward: The pass, as the tape has made it.
      gradients: Its gradient operations, and what they read.
      places: By name of an operation: its number in the order in which the graph had them made.
      at_once: Names of operations that run by tiles, with the forward pass.
      later: By name of an operation that runs by tiles in the backward pass: that of its part.
      again: Names of operations of the forward pass that run again there, where they make something wide.
      exact: By name of a product that makes something wide: what is held as it is, so that what is made again is the
        same.
    """

    backward: _keras.BackwardPass
    gradients: GradientOperations
    places: Mapping[str, int]
    at_once: frozenset[str]
    later: Mapping[str, str]
    again: frozenset[str]
    exact: Mapping[str, tuple[tf.Tensor, ...]]

    def is_late(self, op: tf.Operation) -> bool:
        """Whether an operation is one of the backward pass, or was made after it."""
        return self.places.get(op.name, self.backward.stop) >= self.backward.start

    def is_made_again_exactly(self, op: tf.Operation) -> bool:
        """Whether an operation is one of a part that reads what is made again without an error."""
        return self.later.get(op.name) in self.exact

    def made_at(self, op: tf.Operation) -> int:
        """The place of an operation; of a late one, that of the last forward tensor it comes from."""
        waiting, seen, last = [op], {op.name}, 0
        while waiting:
            current = waiting.pop()
            if not self.is_late(current):
                last = max(last, self.places[current.name])
                continue
            for before in (tensor.op for tensor in current.inputs):
                if before.name not in seen:
                    seen.add(before.name)
                    waiting.append(before)
        return last

    def is_needed_at_once(self, tensor: tf.Tensor) -> bool:
        """Whether the forward pass makes next to nothing, and no product, after a tensor: what a loss is made of.

        To hold it would free no memory before it is read again, and the error would be one of every gradient.
        """
        place = self.made_at(tensor.op)
        later = self.backward.graph.get_operations()[place + 1 : self.backward.start]
        room = 1.25 * plain_bytes(tensor)
        for op in later:
            if about(op.type).is_product:
                return False
            if about(op.type).is_view or about(op.type).is_alias:  # in the buffer that is there
                continue
            room -= sum(plain_bytes(t) for t in op.outputs if t.dtype.is_floating)
            if room < 0:
                return False
        return True


def traced_step(
    backward: _keras.BackwardPass,
    at_once: frozenset[str] = frozenset(),
    later: Mapping[str, str] = types.MappingProxyType({}),
    again: frozenset[str] = frozenset(),
    exact: Mapping[str, tuple[tf.Tensor, ...]] = types.MappingProxyType({}),
) -> TracedStep:
    """The description of a pass that nothing has changed yet."""
    places = {op.name: place for place, op in enumerate(backward.graph.get_operations())}
    for name, made in backward.instead.items():
        places.update((op.name, places[name]) for op in made)
    gradients = GradientOperations(backward, at_once, later)
    return TracedStep(backward, gradients, places, at_once, later, again, exact)
