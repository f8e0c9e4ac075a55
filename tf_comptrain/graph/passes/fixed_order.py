"""One order for what makes large tensors: the memory of a step is then that of every step and every trace."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.operations import SOURCE, about
from tf_comptrain.graph.order import edges, names_of_run
from tf_comptrain.graph.tensors import behind_views, plain_bytes

_LARGE_BYTES = 1 << 16


def fix_order(graph: tf.Graph, returned: Sequence[tf.Tensor]) -> None:
    """Has each operation that makes a large tensor wait for the one before, on each device.

    What frees as much as it makes comes first, and the others come in the order in which they were made. TensorFlow's
    executor would run what is ready in the order of its queue, which depends on names and on other threads: peaks
    scatter by several percent. A function is called in `_keras.order_kept`.

    Args:
      graph: Of a function on the executor, all of it traced and ordered by TensorFlow.
      returned: What the function returns.
    """
    last: dict[str, tf.Operation] = {}
    for op in _SimulatedRun(graph, returned).large_in_order():
        before = last.get(op.device)
        if before is not None and all(tensor.op is not before for tensor in op.inputs):
            _keras.wait_for(op, [before])
        last[op.device] = op


class _SimulatedRun:
    """A run of a graph, simulated one operation after the other."""

    def __init__(self, graph: tf.Graph, returned: Sequence[tf.Tensor]):
        operations = graph.get_operations()
        live = names_of_run(operations, returned)
        self._operations = [op for op in operations if op.name in live]
        self._numbers = {op.name: number for number, op in enumerate(self._operations)}
        self._later, self._missing = edges(self._operations)
        # By reference of a tensor behind views: how many operations have still to read it.
        self._readers: collections.Counter[Any] = collections.Counter(behind_views(t).ref() for t in returned)
        for op in self._operations:
            if not _is_free(op):
                self._readers.update(_read_by(op))

    def large_in_order(self) -> Sequence[tf.Operation]:
        """The operations that make large tensors; the others run as soon as they can."""
        found: list[tf.Operation] = []
        ready = [op for op in self._operations if not self._missing[op.name]]
        large: list[tf.Operation] = []
        while ready or large:
            if ready:
                op = ready.pop()
                if makes_a_large_tensor(op):
                    large.append(op)
                    continue
            else:
                op = min(large, key=lambda one: (self._grows(one), self._numbers[one.name]))
                large.remove(op)
                found.append(op)
            ready += self._run(op)
        return found

    def _run(self, op: tf.Operation) -> list[tf.Operation]:
        """What can run now."""
        if not _is_free(op):
            self._readers.subtract(_read_by(op))
        for name in self._later[op.name]:
            self._missing[name] -= 1
        later = (self._operations[self._numbers[name]] for name in self._later[op.name])
        return [after for after in later if not self._missing[after.name]]

    def _grows(self, op: tf.Operation) -> bool:
        """Whether more is held after an operation than before."""
        made = sum(plain_bytes(output) for output in op.outputs if behind_views(output) is output)
        ended = [reference for reference in _read_by(op) if self._readers[reference] == 1]
        return made > sum(plain_bytes(reference.deref()) for reference in ended)


def _read_by(op: tf.Operation) -> set[Any]:
    """References of what an operation reads and a step holds: no weights, and no constants."""
    tensors = (behind_views(tensor) for tensor in op.inputs)
    return {tensor.ref() for tensor in tensors if about(tensor.op.type).kind != SOURCE}


def _is_free(op: tf.Operation) -> bool:
    row = about(op.type)
    return not op.inputs or row.is_alias or row.is_view or row.kind == SOURCE


def makes_a_large_tensor(op: tf.Operation) -> bool:
    """Whether an operation sets memory aside that counts."""
    return not _is_free(op) and any(plain_bytes(output) >= _LARGE_BYTES for output in op.outputs)
