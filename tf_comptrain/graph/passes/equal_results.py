"""Equal results of the forward pass, which one operation makes for all readers.

A layer that is called several times with one input makes the same each time, as the edge network of a message passing.
TensorFlow and XLA find that by themselves, but not where each result has a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import plain_bytes, readers_of

_LEAST_BYTES = 1 << 16
_READING, _CONSTANT = "ReadVariableOp", "Const"
_MOST_COMPARED = 1 << 14  # values of a constant


def share_equal(backward: _keras.BackwardPass, alike: Callable[[tf.Operation, tf.Operation], bool]) -> None:
    """Has the readers of each large tensor read the first one that is equal to it.

    Args:
      backward: A pass that is not rewired yet.
      alike: Whether the same is wished for what two operations make.
    """
    begin = _keras.kept_with(backward.graph, share_equal, lambda: [0])  # behind passes that are rewired
    for tensor, first in _equal_tensors(backward.graph.get_operations()[begin[0] : backward.start]):
        if plain_bytes(tensor) >= _LEAST_BYTES and alike(tensor.op, first.op):
            redirect(readers_of(tensor), first)
    begin[0] = backward.stop


def _equal_tensors(operations: list[tf.Operation]) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """(What an operation makes, what one before it has made that is equal.)"""
    alone: dict[tuple, tf.Operation] = {}  # by what tells most operations apart
    known: dict[tuple, tf.Operation] = {}  # by all that does, of the others
    first: dict[int, tf.Tensor] = {}  # by id of a tensor
    writes = _Writes()
    for op in operations:
        inputs = [first.get(id(tensor), tensor) for tensor in op.inputs]
        key: tuple = (op.type, *(_CONSTANT if each.op.type == _CONSTANT else id(each) for each in inputs))
        if op.type == _READING:
            key += writes.before(inputs[0]), *(each.name for each in op.control_inputs)
        elif op.op_def.is_stateful:
            writes.note(op, inputs)
            continue
        elif not inputs or op.control_inputs:
            continue
        one = alone.setdefault(key, op)
        if one is op:
            continue
        known.setdefault((key, _details(one)), one)
        found = known.setdefault((key, _details(op)), op)
        if found is not op:
            for old, new in zip(op.outputs, found.outputs):
                first[id(old)] = new
                yield old, new


class _Writes:
    """How often variables may have been written to so far."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}  # by id of a variable
        self._of_all = 0

    def note(self, op: tf.Operation, inputs: list[tf.Tensor]) -> None:
        """Of an operation with a state: what it reads."""
        variables = [id(tensor) for tensor in inputs if tensor.dtype == tf.resource]
        for variable in variables:
            self._of[variable] = self._of.get(variable, 0) + 1
        if not variables and ("PyFunc" in op.type or "Call" in op.type):
            self._of_all += 1

    def before(self, variable: tf.Tensor) -> tuple[int, int]:
        return self._of.get(id(variable), 0), self._of_all


def _details(op: tf.Operation) -> tuple:
    """What an operation's results depend on beside what it reads, and the constants that it reads."""
    attributes = (
        (name, value.SerializeToString()) for name, value in op.node_def.attr.items() if name != "_class"
    )
    constants = (_value(tensor) for tensor in op.inputs if tensor.op.type == _CONSTANT)
    return op.device, tuple(sorted(attributes)), tuple(constants)


def _value(constant: tf.Tensor) -> Any:
    if (constant.shape.num_elements() or 0) > _MOST_COMPARED:
        return id(constant)
    return constant.op.get_attr("value").SerializeToString()
