"""How each tensor that crosses is held: the one decision of a step, as data, before anything of the graph changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain.graph.crossings import BY_THE_LAYER, NEEDED_AT_ONCE, SMALL, packed
from tf_comptrain.graph.gradient_operations import GradientRead
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.held_or_rebuilt import DROPOUT, NORMALIZATION, Choice
from tf_comptrain.graph.ingredients import INDICES, MASKS, WEIGHTS
from tf_comptrain.graph.kernels import stored_behind
from tf_comptrain.graph.operations import SHAPE, UNBOUNDED, UNKNOWN, about
from tf_comptrain.graph.passes.choice import AGAIN, HeldSet
from tf_comptrain.graph.passes.made_again import transposed_product
from tf_comptrain.graph.passes.needs import Needs, may_read_stream
from tf_comptrain.graph.passes.step import TracedStep
from tf_comptrain.graph.tensors import base_of, is_broadcast, is_small
from tf_comptrain.storage import BITMASK, KEEP, REBUILD, Holding

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_APART = "a tf.function of its own reads it: a loaded one, or one with jit_compile or input_signature"
_AS_READ = "XLA makes it of smaller tensors as it is read"
_AS_IT_IS = "the backward pass runs %s on it as it is"
_NO_ACTIVATION = {
    0: "made of constants alone",
    WEIGHTS: "made of weights and constants alone",
    INDICES: "made of indices alone",
    MASKS: "made of masks alone",
}


class SignRead(NamedTuple):
    """How the gradient of a ReLU or a relative gets to know where its input lies.

    Attributes:
      read: What the gradient operation reads.
      tensor: Whose signs these are.
      holding: "bitmask", or "keep" where it reads the tensor; not asked where a stream of the tensor has the mask.
    """

    read: GradientRead
    tensor: tf.Tensor
    holding: Holding


class NormalizationRead(NamedTuple):
    """A gradient of a batch normalization that reads the stream of its input.

    Attributes:
      read: What the gradient operation reads.
      stored: The tensor that is held.
    """

    read: GradientRead
    stored: tf.Tensor


class StepDecision(NamedTuple):
    """How a step holds what crosses.

    Attributes:
      holdings: By reference of a tensor, in the order in which the backward pass asks for them. What is neither here
        nor free waits for an incoming gradient.
      readers: By reference of a tensor: types of the operations that read it or what is rebuilt from it.
      signs: How signs are known.
      normalizations: What reads a stream.
      chosen: What the holdings follow from.
    """

    holdings: Mapping[Any, Holding]
    readers: Mapping[Any, tuple[str, ...]]
    signs: tuple[SignRead, ...]
    normalizations: tuple[NormalizationRead, ...]
    chosen: HeldSet

    def of(self, tensor: tf.Tensor) -> Holding | None:
        """How a tensor is held; None where it does not cross by itself."""
        return self.holdings.get(tensor.ref())


def decide(step: TracedStep, needs: Needs, chosen: HeldSet, streams: StreamsOfStep) -> StepDecision:
    """Says of each tensor that a backward pass asks for how it is held.

    Args:
      step: The step.
      needs: What is read.
      chosen: What the default rule holds.
      streams: Says what is wished for a tensor, and what holds it already.
    """
    walk = _Walk(step, needs, chosen, streams)
    normalizations = tuple(walk.normalizations())
    whole = {found.read.op.name for found in normalizations}
    for read in needs.values:
        if read.op.name not in whole:
            walk.ask(read)
    for factor in needs.factors:
        if factor.tensor.ref() in chosen.choice.saved:
            walk.hold(factor.tensor)
    return StepDecision(walk.holdings, walk.readers, tuple(walk.signs()), normalizations, chosen)


def product_behind(step: TracedStep, choice: Choice, tensor: tf.Tensor) -> tf.Operation | None:
    """The product to make again in place of a transposition of it; XLA makes one of the two by itself."""
    product = None if step.backward.xla else transposed_product(tensor)
    if product is None or step.is_late(product):
        return None
    return None if product.outputs[0].ref() in choice.saved else product


class _Walk:
    """From what is read to what it is made of, up to what is held; notes the holding of each."""

    def __init__(self, step: TracedStep, needs: Needs, chosen: HeldSet, streams: StreamsOfStep):
        self.holdings: dict[Any, Holding] = {}
        self.readers: dict[Any, tuple[str, ...]] = {}
        self._decided: set = set()
        self._step, self._needs, self._chosen, self._streams = step, needs, chosen, streams

    def normalizations(self) -> Iterator[NormalizationRead]:
        """Gradients of batch normalizations whose input is held as a stream."""
        for read in self._needs.values:
            if not may_read_stream(self._step, read):
                continue
            stored = stored_behind(read.tensor, self._chosen.choice.saved)
            if stored is None or self._streams.is_exact(stored) or stored.shape[-1] != read.tensor.shape[-1]:
                continue
            holding = self.hold(stored)
            if holding is not None and holding.codec is not None:
                yield NormalizationRead(read, stored)

    def ask(self, read: GradientRead) -> None:
        """Of what a gradient operation reads."""
        choice, waiting, seen = self._chosen.choice, [base_of(read.tensor)], set()
        while waiting:
            current = waiting.pop()
            if current.ref() in seen:
                continue
            seen.add(current.ref())
            if choice.is_free(current):
                self._note_constant(current, read)
                continue
            if current.ref() in choice.saved:
                self.hold(current)
                continue
            if self._way(current) == REBUILD:
                continue
            self.holdings.setdefault(current.ref(), Holding(REBUILD))
            operands = list((product_behind(self._step, choice, current) or current.op).inputs)
            if current.op.type == NORMALIZATION:
                operands = operands[:3]
            elif current.op.type == DROPOUT:
                operands = operands[:1]
            waiting += [base_of(operand) for operand in reversed(operands)]

    def hold(self, tensor: tf.Tensor) -> Holding | None:
        """Decides on a tensor that is to be held; None where it waits for a gradient and does not cross."""
        gradients, reference = self._step.gradients, tensor.ref()
        if any(gradients.waits(operand.op) for operand in tensor.op.inputs):
            self._keep_behind(tensor)
            return None
        if reference not in self._decided:
            self._decided.add(reference)
            self._note(tensor, self._holding(tensor), self._chosen.errors.readers(tensor))
        return self.holdings[reference]

    def signs(self) -> Iterator[SignRead]:
        """How gradients of ReLUs and relatives get their signs, once it is known what is held."""
        backward = self._step.backward
        for read in self._needs.signs:
            base = base_of(read.tensor)
            if self._step.is_late(base.op) or self._chosen.choice.is_free(base):
                continue
            note = SMALL if is_small(base) else self._why_kept_before(base) or self._streams.why_plain(base)
            note = note or self._why_no_bits(base)
            if backward.recorded and backward.xla:
                note = "a gradient of the gradient is taken"
            yield SignRead(read, base, Holding(KEEP if note else BITMASK, note=note))

    def _way(self, tensor: tf.Tensor) -> str | None:
        holding = self.holdings.get(tensor.ref())
        return None if holding is None else holding.way

    def _note(self, tensor: tf.Tensor, holding: Holding, readers: tuple[str, ...]) -> None:
        self.holdings[tensor.ref()], self.readers[tensor.ref()] = holding, readers

    def _note_constant(self, tensor: tf.Tensor, read: GradientRead) -> None:
        """Notes what the forward pass makes of constants and sizes alone, such as an attention's mask."""
        if about(tensor.op.type).is_free or self._step.is_late(tensor.op) or is_small(tensor):
            return
        if tensor.op.name in self._step.again:  # made in each tile
            return
        if tensor.ref() not in self.holdings:
            self._note(tensor, Holding(KEEP, note=_NO_ACTIVATION[0]), (read.op.type,))

    def _holding(self, tensor: tf.Tensor) -> Holding:
        if packed(tensor) is not None:
            return Holding(KEEP, note=BY_THE_LAYER)
        stream, note = self._streams.find(tensor), self._why_kept(tensor)
        if stream is not None:  # of an earlier gradient
            return Holding(stream.storage, getattr(stream, "codec", None), note=note)
        if note:
            return Holding(KEEP, note=note)
        errors = self._chosen.errors
        mask = tensor.ref() in self._needs.masked
        return self._streams.decide(tensor, errors.kind(tensor), mask, errors.gain(tensor))

    def _keep_behind(self, tensor: tf.Tensor) -> None:
        """Notes that what the backward pass makes a tensor of crosses as it is: the tensor itself does not."""
        waiting, seen = [tensor], {tensor.ref()}
        while waiting:
            current = waiting.pop()
            for operand in map(base_of, current.op.inputs):
                if operand.ref() in seen or about(current.op.type).kind == SHAPE:
                    continue
                seen.add(operand.ref())
                if self._step.is_late(operand.op):
                    waiting.append(operand)
                elif not self._chosen.choice.is_free(operand) and self._way(operand) in (None, REBUILD):
                    note = SMALL if is_small(operand) else _AS_IT_IS % current.op.type
                    self._note(operand, Holding(KEEP, note=note), self._chosen.errors.readers(tensor))

    def _why_kept(self, tensor: tf.Tensor) -> str:
        if is_small(tensor):
            return SMALL
        before, at_once = self._why_kept_before(tensor), self._step.is_needed_at_once
        if tensor.dtype == tf.bool and (why := self._why_no_bits(tensor)):
            return why
        if self._streams.is_exact(tensor):  # no error of it is
            return NEEDED_AT_ONCE if at_once(tensor) else before or self._streams.why_plain(tensor)
        errors = self._chosen.errors
        needs, readers = errors.needs(tensor), ", ".join(errors.readers(tensor))
        if UNKNOWN in needs:
            if not set(_CALLS).isdisjoint(errors.readers(tensor)):
                return _APART
            return f"what an error of it does to the result of {readers} is not known"
        if AGAIN in needs:
            return _AS_IT_IS % readers
        if UNBOUNDED in needs:
            return "its gradient grows without bound, and an error of it with that"
        if at_once(tensor):
            return NEEDED_AT_ONCE
        choice = self._chosen.choice
        if tensor.ref() in choice.exact and tensor.dtype != tf.bool:
            return _NO_ACTIVATION.get(choice.made_of(tensor), "its very value is needed")
        return before or self._streams.why_plain(tensor, errors.gain(tensor))

    def _why_no_bits(self, tensor: tf.Tensor) -> str:
        """Why XLA would hold less without bits of a tensor; "" where it holds more."""
        return _AS_READ if self._step.backward.xla and is_broadcast(tensor) else ""

    def _why_kept_before(self, tensor: tf.Tensor) -> str:
        """Why something else that this pass reads keeps a tensor; "" where nothing does."""
        holding = self.holdings.get(tensor.ref())
        return holding.note if holding is not None and holding.way == KEEP else ""
