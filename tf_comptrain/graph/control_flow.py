"""What TensorFlow's own loops and branches keep for their gradients, in lists that no stream is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.gradient_operations import GradientRead
from tf_comptrain.graph.tensors import base_of

IN_LISTS = "TensorFlow's own loop or branch keeps it in lists: ct.Recompute(layer) holds what the layer reads instead"
STREAMS_IN_LISTS = "a loop keeps a stream of each turn"
_EMPTY = frozenset(("EmptyTensorList", "OptionalNone", "TensorListReserve"))
# By type: the number of the input that a list gets as an element.
_ELEMENT = {"TensorListPushBack": 1, "TensorListSetItem": 2}


class Lists(NamedTuple):
    """What one operation keeps for the backward pass.

    Attributes:
      tensor: The first of its lists.
      readers: Types of the operations that read them.
      sample_bytes: What they take for a sample; None where the graph does not say it.
    """

    tensor: tf.Tensor
    readers: tuple[str, ...]
    sample_bytes: int | None


def lists_read(
    reads: Iterable[GradientRead],
    is_of_backward_pass: Callable[[tf.Operation], bool],
    held: Collection[Any] = (),
) -> Iterator[Lists]:
    """What the operations of a forward pass keep in lists, one after the other, without lists of streams: `held`."""
    found: dict[str, dict] = {}
    readers: dict[str, set[str]] = {}
    for read in reads:
        tensor = base_of(read.tensor)
        op = tensor.op
        if (
            tensor.dtype == tf.variant
            and tensor.ref() not in held
            and op.type not in _EMPTY
            and not is_of_backward_pass(op)
        ):
            found.setdefault(op.name, {})[tensor.ref()] = tensor
            readers.setdefault(op.name, set()).add(read.op.type)
    for name, tensors in found.items():
        sizes = list(map(sample_bytes_of, tensors.values()))
        known = [size for size in sizes if size is not None]
        sample_bytes = sum(known) if len(known) == len(sizes) else None
        if sample_bytes == 0:  # numbers of turns, and weights, which are there anyway
            continue
        yield Lists(next(iter(tensors.values())), tuple(sorted(readers[name])), sample_bytes)


def sample_bytes_of(held: tf.Tensor) -> int | None:
    """What a list takes for a sample, whose number is the one dimension that is not known when the step is traced."""
    op, body = held.op, _keras.loop_body(held.op)
    if op.type == "TensorListFromTensor":
        return _bytes(op.inputs[0])
    made = None if body is None else body.outputs[held.value_index].op
    if made is None or made.type not in _ELEMENT:
        return None
    turns, size = _turns(op.inputs[1]), _bytes(made.inputs[_ELEMENT[made.type]])
    return 0 if size == 0 else None if turns is None or size is None else turns * size


def _turns(limit: tf.Tensor) -> int | None:
    """Of a loop with a limit that is known when the step is traced."""
    limit = base_of(limit)
    numbers = tf.get_static_value(limit.op.inputs[0] if limit.op.type == "Max" else limit)
    return None if numbers is None or np.max(numbers) < 0 else int(np.max(numbers))


def _bytes(element: tf.Tensor) -> int | None:
    """Of an element for a sample."""
    shape, size = element.shape, element.dtype.size
    if shape.rank is None or not size:
        return None
    unknown = list(shape).count(None)
    if unknown == 0 and (shape.rank < 2 or base_of(element).op.type == "ReadVariableOp"):
        return 0  # of the turn, a shape or a weight, which is there anyway
    return size * math.prod(extent for extent in shape if extent is not None) if unknown == 1 else None
