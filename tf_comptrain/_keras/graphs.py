"""A graph that is being traced, changed: TensorFlow's own control flow does it in the same way.

Private: `ops`, `control_flow_util` (TensorFlow 2.21, 2.15).
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops import control_flow_util


def under_xla() -> bool:
    """Whether the graph being built will be compiled by XLA."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf_ops.get_default_graph()))


def set_device(op: tf.Operation, device: str) -> None:
    """Says where an operation of a graph that is being traced runs.

    Private: `Operation._set_device` (TensorFlow 2.21, 2.15).
    """
    op._set_device(device)


def set_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Makes an operation read another tensor of the same type, which must not come from it.

    Private: `Operation._update_input` (TensorFlow 2.21, 2.15).
    """
    op._update_input(index, tensor)


def wait_for(op: tf.Operation, others: Sequence[tf.Operation]) -> None:
    """Makes the executor run an operation after others, which must not come from it.

    Private: `Operation._add_control_inputs` (TensorFlow 2.21, 2.15).
    """
    op._add_control_inputs(list(others))


@contextlib.contextmanager
def order_kept() -> Iterator[None]:
    """Inside, calls of traced functions run operations after those that they wait for.

    TensorFlow's optimizer of arithmetic puts other operations in the place of some, which wait for nothing.
    Private: `context.FunctionCallOptions` (TensorFlow 2.21, 2.15).
    """
    here = context.context()
    before = here.function_call_options
    config = here.config  # a copy
    rewriting = config.graph_options.rewrite_options
    rewriting.arithmetic_optimization = rewriting.OFF
    here.function_call_options = context.FunctionCallOptions(before.executor_type, config)
    try:
        yield
    finally:
        here.function_call_options = before


def wait_for_nothing(op: tf.Operation) -> None:
    """Makes the executor run an operation as soon as its inputs are there.

    Private: `Operation._remove_all_control_inputs` (TensorFlow 2.21, 2.15).
    """
    op._remove_all_control_inputs()


def operations_waiting_for(op: tf.Operation) -> list[tf.Operation]:
    """The operations that have one among their control inputs.

    Private: `Operation._control_outputs` (TensorFlow 2.21, 2.15).
    """
    return list(op._control_outputs)


def wait_instead(old: tf.Operation, new: tf.Operation, free: Collection[str] = ()) -> None:
    """Makes what waits for one operation wait for another, but for those named in `free`, which wait no longer.

    Private: `Operation._add_control_inputs`, `Operation._remove_all_control_inputs` (TensorFlow 2.21, 2.15).
    """
    for op in operations_waiting_for(old):
        instead = [] if op.name in free else [new]
        waits = [after for before in op.control_inputs for after in (instead if before is old else [before])]
        op._remove_all_control_inputs()
        op._add_control_inputs(waits)


def run_again(
    op: tf.Operation, inputs: Sequence[tf.Tensor], scope: str, shaped: bool = True
) -> list[tf.Tensor]:
    """The outputs of a copy of an operation in the graph being built, with other inputs.

    `shaped`: they make outputs of the same shapes.

    Private: `Graph._create_op_internal` (TensorFlow 2.21, 2.15).
    """
    attributes = {key: value for key, value in op.node_def.attr.items() if not key.startswith("_")}
    copy = tf.compat.v1.get_default_graph()._create_op_internal(
        op.type,
        list(inputs),
        [output.dtype for output in op.outputs],
        attrs=attributes,
        name=f"{scope}/{op.name.rpartition('/')[2]}",
    )
    for made, output in zip(copy.outputs, op.outputs if shaped else ()):
        made.set_shape(output.shape)
    return list(copy.outputs)


def run_eagerly(
    op: tf.Operation, inputs: Sequence[Any], instead: Mapping[tf.DType, tf.DType] = types.MappingProxyType({})
) -> list[tf.Tensor]:
    """What an operation of a graph makes of values, outside of that graph.

    `instead`: types that it computes in, in place of others.

    Private: `context.context`, `context.eager_mode`, `execute.execute` (TensorFlow 2.21, 2.15).
    """
    attributes: list[Any] = []
    for attr in op.op_def.attr:
        value = op.get_attr(attr.name)
        if isinstance(value, tf.DType):
            value = instead.get(value, value).as_datatype_enum
        attributes += [attr.name, value]
    with context.eager_mode():
        dtypes = [instead.get(tensor.dtype, tensor.dtype) for tensor in op.inputs]
        values = [tf.constant(value, dtype) for value, dtype in zip(inputs, dtypes)]
        return list(execute.execute(op.type, len(op.outputs), values, tuple(attributes), context.context()))


def captured_from_outside(graph: Any) -> set[int]:
    """Ids of the eager tensors (handles of variables among them) that a function's graph, or one around it, reads."""
    found: set[int] = set()
    while graph is not None and hasattr(graph, "captures"):
        found.update(id(outside) for outside, _ in graph.captures)
        graph = getattr(graph, "outer_graph", None)
    return found


def captured_variables(graph: Any, variables: Sequence[tf.Variable]) -> dict[str, str]:
    """Devices of variables by the name of the operation that stands for them in a function's graph."""
    devices = {id(variable.handle): variable.device for variable in variables}
    return {
        inside.op.name: devices[id(outside)] for outside, inside in graph.captures if id(outside) in devices
    }


def kept_with(graph: Any, owner: Any, make: Callable[[], Any]) -> Any:
    """What was made for a graph, the replica that is traced now, and an owner, at the first call.

    It lives as long as the graph does, which the replicas of a strategy share.
    """
    kept = getattr(graph, "_comptrain_kept", None)
    if kept is None:
        kept = graph._comptrain_kept = {}
    key = id(owner), _replica()
    if key not in kept:
        kept[key] = make()
    return kept[key]


def _replica() -> int:
    """The number of the replica that is traced now; 0 where one trace is that of all.

    Private: `ReplicaContext._replica_id_in_sync_group` (TensorFlow 2.21, 2.15).
    """
    number = getattr(tf.distribute.get_replica_context(), "_replica_id_in_sync_group", 0)
    return number if isinstance(number, int) else 0


def loop_body(op: tf.Operation) -> Any:
    """The graph of one turn of a TensorFlow loop, whose outputs are those of the operation; None of any other one.

    Private: `Operation._body_graph` (TensorFlow 2.21, 2.15).
    """
    return getattr(op, "_body_graph", None)
