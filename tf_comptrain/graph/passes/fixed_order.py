"""One order for what makes large tensors: the memory of a step is then that of every step and every trace."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.operations import SOURCE, about
from tf_comptrain.graph.order import ancestors, as_made
from tf_comptrain.graph.tensors import plain_bytes

_LARGE_BYTES = 1 << 16


def fix_order(graph: tf.Graph, returned: Sequence[tf.Tensor]) -> None:
    """Has each operation that makes a large tensor wait for the one before, on each device.

    The order is that in which the operations were made, as far as what they wait for allows it. TensorFlow's executor
    would run what is ready in the order of its queue, which depends on names and on other threads: peaks scatter by
    several percent.

    Args:
      graph: Of a function on the executor, all of it traced and ordered by TensorFlow.
      returned: What the function returns.
    """
    operations = graph.get_operations()
    roots = [op for op in operations if op.op_def.is_stateful] + [tensor.op for tensor in returned]
    live = ancestors(roots, {op.name for op in operations})  # to wait for another one would make that run too
    last: dict[str, tf.Operation] = {}
    for op in as_made([op for op in operations if op.name in live]):
        if _makes_a_large_tensor(op):
            before = last.get(op.device)
            if before is not None and all(tensor.op is not before for tensor in op.inputs):
                _keras.wait_for(op, [before])
            last[op.device] = op


def _makes_a_large_tensor(op: tf.Operation) -> bool:
    row = about(op.type)
    if not op.inputs or row.is_alias or row.is_view or row.kind == SOURCE:
        return False
    return any(plain_bytes(output) >= _LARGE_BYTES for output in op.outputs)
