"""Which operations of a backward pass are gradient operations, and what each reads of the forward pass."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.operations import ADDITION, SHAPE, about
from tf_comptrain.graph.order import ancestors, operations_before
from tf_comptrain.graph.tensors import behind_views, element_count, values_of

_TIMES_SMALLER = 64  # than a term of a sum: what that is made of is there when the backward pass begins


def is_product(tensor: tf.Tensor) -> bool:
    """Whether a tensor is that of a product, and maybe of a bias, in whatever shape."""
    op = behind_views(tensor).op
    if about(op.type).kind == ADDITION and len(op.inputs) == 2 and _is_bias(op.inputs[1], op.inputs[0]):
        op = behind_views(op.inputs[0]).op
    return about(op.type).is_product


def _is_bias(bias: tf.Tensor, tensor: tf.Tensor) -> bool:
    ranks = bias.shape.rank, tensor.shape.rank
    return None not in ranks and ranks[0] < ranks[1]  # type: ignore[operator]


class GradientRead(NamedTuple):
    """One input of a gradient operation that is no gradient.

    Attributes:
      op: The operation: it has an incoming gradient among its inputs.
      number: Of the input.
      tensor: What it reads there: made by the forward pass, or from forward tensors alone.
      need: What it needs of it: one of `operations`'.
      gate: The incoming gradient; of elementwise operations in a row that of the first. Of a penalty on activations,
        whose own is a number, the gradient that it is added to.
      awaited: The gradient that is there before anything is made for the operation.
      group: Readers of which this is the same share what is rebuilt: elementwise operations in a row; gradients of
        weights that read the same tensor.
      source: Readers of which this is the same share what is dear to make: those of a group, and those of the gradient
        that the group's products make.
    """

    op: tf.Operation
    number: int
    tensor: tf.Tensor
    need: str
    gate: tf.Tensor
    awaited: tf.Tensor
    group: tf.Tensor
    source: tf.Tensor


class GradientOperations:
    """The operations of a backward pass that the wanted gradients come from and that take an incoming gradient.

    Args:
      backward: The pass.
      at_once: Names of operations that run with the forward pass: what they read does not cross.
      later: By name of an operation of a part that runs by tiles in the backward pass: that of the part.

    Attributes:
      operations: In the order in which they were made.
      reads: What they read that is no gradient.
      factors: What else the backward pass reads, for factors that it computes in ways that are not known to bear an
        error: (operation, tensor).
    """

    def __init__(
        self,
        backward: _keras.BackwardPass,
        at_once: frozenset[str] = frozenset(),
        later: Mapping[str, str] = types.MappingProxyType({}),
    ):
        made = backward.operations()
        live = names_of_live(backward)
        seeds = {seed.op.name for seed in backward.seeds}
        self.operations = _from(seeds, [op for op in made if op.name in live], _inputs)
        self._names = {op.name for op in self.operations}
        self._gradients = seeds | self._names
        self._waiting = seeds | {op.name for op in _from(seeds, made, operations_before)}
        self._met = self._met_in_sums(at_once | later.keys())
        inputs = [
            (op, index, tensor)
            for op in self.operations
            for index, tensor in enumerate(op.inputs)
            if not self.is_gradient(tensor) and op.name not in at_once
        ]
        self._entries = self._entered(later)
        self._groups = self._grouped(inputs)
        self.reads = [self._read(*each) for each in inputs]
        self.factors = self._factors(made, live - at_once)

    def is_gradient(self, tensor: tf.Tensor) -> bool:
        return tensor.op.name in self._gradients

    def waits(self, op: tf.Operation) -> bool:
        """Whether an operation runs when an incoming gradient is there: what it makes crosses nothing."""
        return op.name in self._waiting

    def meets(self, op: tf.Operation) -> bool:
        """Whether an operation makes a term of a sum of a number: its gate is another term of that."""
        return op.name in self._met

    def readers_of(self, gradient: tf.Tensor) -> list[tf.Operation]:
        """Gradient operations that read a gradient."""
        return [op for op in gradient.consumers() if op.name in self._names]

    def readers_of_views(self, gradient: tf.Tensor) -> list[tf.Operation]:
        """Gradient operations that read a gradient in whatever shape."""
        readers: dict[str, tf.Operation] = {}
        waiting = [gradient]
        while waiting:
            found = self.readers_of(waiting.pop())
            readers.update((op.name, op) for op in found if not about(op.type).is_view)
            waiting += [op.outputs[0] for op in found if about(op.type).is_view]
        return list(readers.values())

    def behind_views(self, gradient: tf.Tensor) -> tf.Tensor:
        """The gradient in the shape in which it was made."""
        while about(gradient.op.type).is_view and gradient.op.name in self._names:
            gradient = gradient.op.inputs[0]
        return gradient

    def _factors(self, made: list[tf.Operation], live: set[str]) -> list[tuple[tf.Operation, tf.Tensor]]:
        made_of_values = live - self._gradients - {op.name for op in made if about(op.type).kind == SHAPE}
        return [
            (op, tensor)
            for op in made
            if op.name in made_of_values and not about(op.type).again
            for tensor in op.inputs
        ]

    def _entered(self, later: Mapping[str, str]) -> dict[str, tf.Tensor]:
        """By name of an operation of a part: the gradient that the part begins with.

        All of it runs as one loop: what is restored for one of its operations is there for all.
        """
        first: dict[str, tf.Tensor] = {}
        for op in self.operations:
            if op.name in later:
                first.setdefault(later[op.name], self._incoming(op))
        return {name: first[part] for name, part in later.items() if part in first}

    def _read(self, op: tf.Operation, index: int, tensor: tf.Tensor) -> GradientRead:
        entry = self._entries.get(op.name)
        if entry is not None:
            return GradientRead(op, index, tensor, about(op.type).need(index), entry, entry, entry, entry)
        gate = self._gate(op)
        group, waits = gate, False
        if about(op.type).is_product and self.ends(op):
            group, waits = self._groups.get(gate.ref(), (gate, False))
        return GradientRead(
            op,
            index,
            tensor,
            about(op.type).need(index),
            gate,
            group if waits else self._incoming(op),
            group,
            self._source(gate) if about(op.type).hands_on else group,
        )

    def _gate(self, op: tf.Operation) -> tf.Tensor:
        """The incoming gradient of the first of the elementwise operations that an operation ends."""
        gate = self._incoming(op)
        return self._behind_elementwise(gate) if about(op.type).hands_on else self.behind_views(gate)

    def _grouped(self, inputs: list[tuple[tf.Operation, int, tf.Tensor]]) -> dict:
        """By reference of a gate: the last of those for which gradients of weights read the same tensor, and whether
        the others wait for that one.

        They wait where to keep an incoming gradient, instead of what its other product makes, takes no more memory
        (queries, keys and values of an attention). Where nothing but elementwise operations stand between two gates
        what is made for the first waits for the second (a gated unit).
        """
        readers: dict = {}
        for op, _, tensor in inputs:
            if about(op.type).is_product and self.ends(op):
                readers.setdefault(behind_views(tensor).ref(), []).append(op)
        groups: dict = {}
        for reference, found in readers.items():
            size = element_count(reference.deref())
            last = self._gate(found[-1])
            for op in found[:-1]:
                gate = self._gate(op)
                waits = max(element_count(gate), element_count(op.outputs[0])) <= size
                if waits or self._behind_elementwise(gate) is self._behind_elementwise(last):
                    groups[gate.ref()] = last, waits
        return groups

    def ends(self, op: tf.Operation) -> bool:
        """Whether no product is made of what an operation makes, so that nothing waits for it."""
        waiting, seen = [op], {op.name}
        while waiting:
            for later in (reader for tensor in waiting.pop().outputs for reader in tensor.consumers()):
                if later.name in self._names and later.name not in seen:
                    if about(later.type).is_product:
                        return False
                    seen.add(later.name)
                    waiting.append(later)
        return True

    @staticmethod
    def is_joined(op: tf.Operation) -> bool:
        """Whether TensorFlow makes one operation of it and the gradient of a convolution's kernel, if neither waits."""
        beside = (reader.type for tensor in op.inputs for reader in tensor.consumers())
        return op.type == "BiasAddGrad" and any(kind.startswith("Conv") for kind in beside)

    def _source(self, gate: tf.Tensor) -> tf.Tensor:
        """The group of the products that make an incoming gradient; the gradient itself where there is more to it.

        Until it is made, what was restored for the gradients of weights beside them takes room that what it is read
        with afterwards takes anyway.
        """
        terms = list(gate.op.inputs) if gate.op.type == "AddN" else [gate]
        sources = {self._factor(term).ref() for term in terms}
        source = sources.pop()
        return gate if sources else source.deref()

    def _factor(self, gradient: tf.Tensor) -> tf.Tensor:
        """The group of the product that a gradient is, or is made of element by element."""
        gradient = self._behind_elementwise(gradient)
        if not about(gradient.op.type).is_product or gradient.op.name not in self._names:
            return gradient
        gate = self._gate(gradient.op)
        return self._groups.get(gate.ref(), (gate, False))[0]

    def _behind_elementwise(self, gradient: tf.Tensor) -> tf.Tensor:
        while self._is_handed_on(gradient):
            gradient = self._incoming(gradient.op)
        return gradient

    def _incoming(self, op: tf.Operation) -> tf.Tensor:
        met = self._met.get(op.name)
        return self._first_gradient(op) if met is None else met

    def _first_gradient(self, op: tf.Operation) -> tf.Tensor:
        return next(tensor for tensor in op.inputs if self.is_gradient(tensor))

    def _met_in_sums(self, tiled: Collection[str]) -> dict[str, tf.Tensor]:
        """By name of an operation that makes a term of a sum of a small gradient: another term of it.

        Args:
          tiled: Names of operations that run by tiles, which wait for nothing by themselves.
        """
        met: dict[str, tf.Tensor] = {}
        for op in self.operations:
            if about(op.type).kind == ADDITION:
                terms = [tensor for tensor in op.inputs if self.is_gradient(tensor)]
                makers = [self._makers_of_small(term) for term in terms]
                others = [term for term, found in zip(terms, makers) if not found]
                if others:
                    met |= {name: others[-1] for found in makers for name in found if name not in tiled}
        return met

    def _makers_of_small(self, term: tf.Tensor) -> list[str]:
        """Names of the elementwise operations that make a term, for one sum alone; none where it is of a large one.

        What others read as well may make the other terms: no term may wait for what is made of itself.
        """
        found: list[str] = []
        tensor = term
        while self._is_handed_on(tensor) and len(tensor.consumers()) == 1:
            found.append(tensor.op.name)
            tensor = self._first_gradient(tensor.op)
        return found if element_count(tensor) * _TIMES_SMALLER <= element_count(term) else []

    def _is_handed_on(self, gradient: tf.Tensor) -> bool:
        return about(gradient.op.type).hands_on and gradient.op.name in self._names


def names_of_live(backward: _keras.BackwardPass) -> set[str]:
    """Names of the operations of a backward pass that its gradients come from."""
    made = {op.name for op in backward.operations()}
    return ancestors((values_of(each).op for each in backward.gradients if each is not None), made)


def _inputs(op: tf.Operation) -> list[tf.Operation]:
    return [tensor.op for tensor in op.inputs]


def _from(
    names: set[str],
    operations: list[tf.Operation],
    before: Callable[[tf.Operation], Iterable[tf.Operation]],
) -> list[tf.Operation]:
    """Those of the operations, in their order, that come from one of the names."""
    reached, found = set(names), []
    for op in operations:
        if any(other.name in reached for other in before(op)):
            reached.add(op.name)
            found.append(op)
    return found
