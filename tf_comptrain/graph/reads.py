"""What a backward pass reads of the forward pass, operation by operation."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph import sensitivity

# Operations that hand a gradient on, element by element or summed: what they stand between shares restored tensors.
_ELEMENTWISE = frozenset(
    ("BroadcastTo", "Cast", "EluGrad", "ExpandDims", "Identity", "LeakyReluGrad", "Mean", "Mul", "Neg", "RealDiv",
     "Relu6Grad", "ReluGrad", "ReciprocalGrad", "Reshape", "RsqrtGrad", "SelectV2", "SeluGrad", "SigmoidGrad",
     "SoftplusGrad", "SoftsignGrad", "SqrtGrad", "Squeeze", "Sub", "Sum", "TanhGrad", "Tile", "Transpose")
)  # fmt: skip
_VIEWS = frozenset(("ExpandDims", "Identity", "Reshape", "Squeeze"))


class Read(NamedTuple):
    """One input of a gradient operation that is no gradient.

    Attributes:
      op: The operation: it has an incoming gradient among its inputs.
      number: Of the input.
      tensor: What it reads there: made by the forward pass, or from forward tensors alone.
      need: What it needs of it: one of `sensitivity`'s.
      gate: The incoming gradient that says when: nothing is restored for the operation before that is there.
    """

    op: tf.Operation
    number: int
    tensor: tf.Tensor
    need: str
    gate: tf.Tensor


class GradientOperations:
    """The operations of a backward pass that the wanted gradients come from and that take an incoming gradient.

    Attributes:
      operations: In the order in which they were made.
      reads: What they read that is no gradient.
      factors: What else the backward pass reads, for factors that it computes in ways that are not known to bear an
        error: (operation, tensor).
    """

    def __init__(self, backward: _keras.BackwardPass):
        made = backward.operations()
        live = _ancestors(
            [_tensor(g).op for g in backward.gradients if g is not None], {op.name for op in made}
        )
        self._gradients = {seed.op.name for seed in backward.seeds}
        self.operations: list[tf.Operation] = []
        for op in made:
            if op.name in live and any(t.op.name in self._gradients for t in op.inputs):
                self._gradients.add(op.name)
                self.operations.append(op)
        self._names = {op.name for op in self.operations}
        self.reads = [
            Read(op, index, tensor, sensitivity.reads(op.type, index), self._gate(op))
            for op in self.operations
            for index, tensor in enumerate(op.inputs)
            if not self.is_gradient(tensor)
        ]

        made_of_values = (
            live - self._gradients - {op.name for op in made if op.type in sensitivity.SHAPE_ONLY}
        )
        self.factors = [
            (op, tensor)
            for op in made
            if op.name in made_of_values and not sensitivity.is_cheap(op.type)
            for tensor in op.inputs
        ]

    def is_gradient(self, tensor: tf.Tensor) -> bool:
        return tensor.op.name in self._gradients

    def readers_of(self, gate: tf.Tensor) -> list[tf.Operation]:
        """Gradient operations that read an incoming gradient, in whatever shape."""
        readers: dict[str, tf.Operation] = {}
        waiting = [gate]
        while waiting:
            found = [op for op in waiting.pop().consumers() if op.name in self._names]
            readers.update((op.name, op) for op in found if op.type not in _VIEWS)
            waiting += [op.outputs[0] for op in found if op.type in _VIEWS]
        return list(readers.values())

    def behind_views(self, gradient: tf.Tensor) -> tf.Tensor:
        """The gradient in the shape in which it was made."""
        while gradient.op.type in _VIEWS and gradient.op.name in self._names:
            gradient = gradient.op.inputs[0]
        return gradient

    def _gate(self, op: tf.Operation) -> tf.Tensor:
        """The incoming gradient of an operation.

        Of elementwise operations in a row it is that of the first, so that they share what is restored for them.
        """
        through = _ELEMENTWISE if op.type in _ELEMENTWISE else _VIEWS
        gate = self._incoming(op)
        while gate.op.type in through and gate.op.name in self._names:
            gate = self._incoming(gate.op)
        return gate

    def _incoming(self, op: tf.Operation) -> tf.Tensor:
        return next(tensor for tensor in op.inputs if self.is_gradient(tensor))


def is_elementwise(op: tf.Operation) -> bool:
    """Whether a gradient operation hands a gradient on element by element, or summed."""
    return op.type in _ELEMENTWISE


def _tensor(gradient) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _ancestors(operations: list[tf.Operation], within: set[str]) -> set[str]:
    """Names of operations and of those among `within` that they come from."""
    found: set[str] = set()
    waiting = list(operations)
    while waiting:
        op = waiting.pop()
        if op.name in within and op.name not in found:
            found.add(op.name)
            waiting.extend(tensor.op for tensor in op.inputs)
            waiting.extend(op.control_inputs)
    return found
