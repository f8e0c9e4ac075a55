"""What an error of each held tensor does, by all that the backward pass makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_comptrain.graph.held_or_rebuilt import DROPOUT, NORMALIZATION, Choice
from tf_comptrain.graph.operations import CONVOLUTION, LINEAR, NONLINEAR, NORM, about
from tf_comptrain.graph.tensors import base_of, is_moved

_LINEAR_NEEDS = (LINEAR, CONVOLUTION)
_LEAST_DIVISOR = 1e-6
_OF_FUNCTIONS = (LINEAR, NONLINEAR)
_IN_PROPORTION = (DROPOUT, NORMALIZATION)  # by given bits or statistics
_STRICTEST_FIRST = (NONLINEAR, LINEAR, NORM)


class Made(NamedTuple):
    """What is made of a tensor for the backward pass.

    Attributes:
      tensor: The tensor.
      need: What is needed of it: one of `operations`', or of the rewiring's own.
      reader: Type of the operation that reads it.
      ends: An error of it ends in the gradient of a weight.
      gain: Constants by which an error of the tensor grows on its way to the argument of a nonlinear function (30 of
        softmax(30 x)); 0 where no such function is between the tensor and its reader.
    """

    tensor: tf.Tensor
    need: str
    reader: str
    ends: bool
    gain: float = 0.0


class Errors:
    """What an error of each held tensor does.

    Args:
      reads: What the backward pass reads.
      choice: What is held.
    """

    def __init__(self, reads: Sequence[Made], choice: Choice):
        self._made: dict[Any, list[Made]] = {}
        gains: dict[tuple, float] = {}
        waiting = [
            read._replace(tensor=base_of(read.tensor), gain=float(read.need == NONLINEAR)) for read in reads
        ]
        while waiting:
            made = waiting.pop()
            key = (made.tensor.ref(), *made[1:4])
            if choice.is_free(made.tensor) or gains.get(key, -1.0) >= made.gain:
                continue
            gains[key] = made.gain
            if made.tensor.ref() in choice.saved:
                self._made.setdefault(made.tensor.ref(), []).append(_of_itself(made))
            else:
                waiting += _operands(made)

    def needs(self, tensor: tf.Tensor) -> set[str]:
        return {made.need for made in self._made.get(tensor.ref(), ())}

    def readers(self, tensor: tf.Tensor) -> tuple[str, ...]:
        """Types of the operations that read it, or what is rebuilt from it."""
        return tuple(sorted({made.reader for made in self._made.get(tensor.ref(), ())}))

    def travelling(self, reference: Any) -> set[str]:
        """Needs of what an error does not end at in a weight's gradient."""
        return {made.need for made in self._made.get(reference, ()) if not made.ends}

    def kind(self, tensor: tf.Tensor) -> str:
        """The strictest of what an error of the tensor does."""
        kinds = self.needs(tensor)
        found = next((kind for kind in _STRICTEST_FIRST if kind in kinds), None)
        return found or (CONVOLUTION if kinds == {CONVOLUTION} else LINEAR)

    def gain(self, tensor: tf.Tensor) -> float:
        """The largest of `Made.gain`; 1 at least."""
        return max([1.0, *(made.gain for made in self._made.get(tensor.ref(), ()))])


def _of_itself(made: Made) -> Made:
    """What a function that saturates makes is what its derivative is made of: of softmax p (1 - p).

    It is as close to its limits as the constants before it have it.
    """
    op = made.tensor.op
    if not about(op.type).saturates or made.ends or made.need not in _OF_FUNCTIONS:
        return made
    gain, argument = 1.0, base_of(op.inputs[0])
    while is_moved(argument) or argument.op.type in ("Cast", "Mul", "RealDiv"):
        index = 1 if argument.op.type == "Mul" and _is_constant(argument.op.inputs[0]) else 0
        gain *= _factor(argument.op, index)
        argument = base_of(argument.op.inputs[index])
    return made._replace(need=NONLINEAR, gain=max(made.gain, gain))


def _is_constant(tensor: tf.Tensor) -> bool:
    return tf.get_static_value(base_of(tensor)) is not None


def _operands(made: Made) -> list[Made]:
    """The same of what a tensor is made of again."""
    tensor, need, gain = made.tensor, made.need, made.gain
    if about(tensor.op.type).again != LINEAR and tensor.op.type not in _IN_PROPORTION:
        if need in _LINEAR_NEEDS and not made.ends:
            need = NONLINEAR
        gain = max(gain, 1.0)
    return [
        made._replace(tensor=base_of(operand), need=need, gain=gain * _factor(tensor.op, index))
        for index, operand in enumerate(tensor.op.inputs)
    ]


def _factor(op: tf.Operation, index: int) -> float:
    """The constant that an operation multiplies one of its inputs with; 1 where that is none."""
    if op.type not in ("Mul", "RealDiv") or op.type == "RealDiv" and index == 1:
        return 1.0
    value = tf.get_static_value(base_of(op.inputs[1 - index]))
    size = float(np.max(np.abs(value))) if value is not None and np.size(value) else 1.0
    return size if op.type == "Mul" else 1.0 / max(size, _LEAST_DIVISOR)
