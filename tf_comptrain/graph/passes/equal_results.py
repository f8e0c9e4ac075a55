"""Equal results of the forward pass, which one operation makes for all readers.

A layer that is called several times with one input makes the same each time, as the edge network of a message passing.
TensorFlow and XLA find that by themselves, but not where each result has a stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import plain_bytes, readers_of

_LEAST_BYTES = 1 << 16
_READING, _CONSTANT = "ReadVariableOp", "Const"


def share_equal(backward: _keras.BackwardPass) -> None:
    """Has the readers of each large tensor read the first one that is equal to it.

    Args:
      backward: A pass that is not rewired yet.
    """
    begin = _keras.kept_with(backward.graph, share_equal, lambda: [0])  # behind passes that are rewired
    for tensor, first in _equal_tensors(backward.graph.get_operations()[begin[0] : backward.start]):
        if plain_bytes(tensor) >= _LEAST_BYTES:
            redirect(readers_of(tensor), first)
    begin[0] = backward.stop


def _equal_tensors(operations: list[tf.Operation]) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """(What an operation makes, what one before it has made that is equal.)"""
    known: dict[tuple, list[tf.Operation]] = {}
    first: dict[int, tf.Tensor] = {}  # by id of a tensor
    writes: dict[int, int] = {}  # by id of a variable
    for op in operations:
        inputs = [first.get(id(tensor), tensor) for tensor in op.inputs]
        key: tuple = (op.type, *(_CONSTANT if each.op.type == _CONSTANT else id(each) for each in inputs))
        if op.type == _READING:
            key += (writes.get(key[1], 0),)
        elif op.op_def.is_stateful:
            for tensor in inputs:
                if tensor.dtype == tf.resource:
                    writes[id(tensor)] = writes.get(id(tensor), 0) + 1
            continue
        elif not inputs or op.control_inputs:
            continue
        same = known.setdefault(key, [])
        found = next((one for one in same if _is_same(one, op)), None)
        if found is None:
            same.append(op)
            continue
        for old, new in zip(op.outputs, found.outputs):
            first[id(old)] = new
            yield old, new


def _is_same(one: tf.Operation, other: tf.Operation) -> bool:
    """Whether two operations of one type make the same, where what they read is equal but for constants."""
    if one.device != other.device or _attributes(one) != _attributes(other):
        return False
    pairs = ((a, b) for a, b in zip(one.inputs, other.inputs) if a.op.type == _CONSTANT and a is not b)
    return all(a.op.get_attr("value") == b.op.get_attr("value") for a, b in pairs)


def _attributes(op: tf.Operation) -> dict[str, Any]:
    return {name: value.SerializeToString() for name, value in op.node_def.attr.items() if name != "_class"}
