"""The lists in which a TensorFlow loop keeps what the loop of its gradient reads, turn by turn.

Private: `control_flow_util_v2`, `handle_data_util`, `list_ops` (TensorFlow 2.21, 2.15).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops import control_flow_util_v2, handle_data_util, list_ops

from tf_comptrain._keras.graphs import loop_body, set_input


class LoopList(NamedTuple):
    """A list that a loop fills with a tensor in each turn, and that the loop of its gradient empties.

    Attributes:
      filled: The loop's output.
      element: What it adds, in the graph of a turn.
      emptied: The gradient's loop.
      number: Of the list among the inputs of that loop.
      popped: What it takes, in the graph of a turn.
    """

    filled: tf.Tensor
    element: tf.Tensor
    emptied: tf.Operation
    number: int
    popped: tf.Tensor


def loop_lists(emptied: tf.Operation) -> Iterator[LoopList]:
    """The lists that a loop of a gradient empties, and no other operation reads."""
    body = loop_body(emptied)
    for number, filled in enumerate(emptied.inputs):
        before = loop_body(filled.op) if filled.dtype == tf.variant else None
        added = None if before is None else before.outputs[filled.value_index].op
        if added is None or added.type != "TensorListPushBack" or len(filled.consumers()) > 1:
            continue
        takers = body.inputs[number].consumers()
        if [op.type for op in takers] == ["TensorListPopBack"]:
            yield LoopList(filled, added.inputs[1], emptied, number, takers[0].outputs[1])


def hold_list(
    held: LoopList,
    encode: Callable[[tf.Tensor], tf.Tensor],
    decode: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> None:
    """Has a list hold streams in the place of tensors. `register_bodies` is to follow.

    A stream is bytes, and an element of the list has its type and rank still: its own size and the tensor's shape
    stand behind the stream.

    `encode`: A tensor -> its stream, uint8 [bytes]. `decode`: (stream, shape) -> the tensor.

    Private: `handle_data_util.get_handle_data`, `handle_data_util.set_handle_data`,
      `list_ops.tensor_list_push_back`, `list_ops.tensor_list_pop_back` (TensorFlow 2.21, 2.15).
    """
    element, popped, filled = held.element, held.popped, held.filled
    rank, dtype = element.shape.rank, element.dtype
    before, after = loop_body(filled.op), loop_body(held.emptied)
    empty = filled.op.inputs[filled.value_index].op
    with filled.graph.as_default(), control_flow_util_v2.clear_control_inputs():
        set_input(empty, 0, tf.constant([-1] * rank, empty.inputs[0].dtype, empty.inputs[0].shape))
    begun, left = before.inputs[filled.value_index], after.inputs[held.number]
    any_shape = handle_data_util.get_handle_data(left)
    any_shape.shape_and_type[0].shape.CopyFrom(tf.TensorShape([None] * rank).as_proto())
    for tensor in (begun, filled, left):
        handle_data_util.set_handle_data(tensor, any_shape)
    with before.as_default():
        stream = _as_type(encode(element), tf.shape(element), dtype, rank)
        before.outputs[filled.value_index] = list_ops.tensor_list_push_back(begun, stream)
    with after.as_default():
        rest, stream = list_ops.tensor_list_pop_back(left, element_dtype=dtype)
        restored = decode(*_as_bytes(stream, rank))
        restored.set_shape(element.shape)
    _read_instead(popped, restored)
    after.outputs[:] = [rest if output is popped.op.outputs[0] else output for output in after.outputs]


def register_bodies(loops: Iterable[tf.Operation]) -> None:
    """Has loops run their turns as the graphs of these are now.

    Private: `Operation._set_func_attr`, `control_flow_util_v2.create_new_tf_function`,
      `control_flow_util_v2.unique_fn_name` (TensorFlow 2.21, 2.15).
    """
    for loop in loops:
        body = loop_body(loop)
        with loop.graph.as_default():
            body.name = control_flow_util_v2.unique_fn_name(body.name, "held")
            loop._set_func_attr("body", control_flow_util_v2.create_new_tf_function(body))


def _as_type(stream: tf.Tensor, shape: tf.Tensor, dtype: tf.DType, rank: int) -> tf.Tensor:
    """Bytes, and what it takes to restore a tensor from them, as an element of a list."""
    size = tf.size(stream)
    behind = tf.bitcast(tf.concat([shape, [size]], 0), tf.uint8)
    whole = tf.concat([stream, tf.zeros([-size % 4], tf.uint8), tf.reshape(behind, [-1])], 0)
    return tf.bitcast(tf.reshape(whole, [*[1] * (rank - 1), -1, dtype.size]), dtype)


def _as_bytes(element: tf.Tensor, rank: int) -> tuple[tf.Tensor, tf.Tensor]:
    """A stream, and the shape of its tensor."""
    whole = tf.reshape(tf.bitcast(element, tf.uint8), [-1])
    behind = tf.bitcast(tf.reshape(whole[-4 * (rank + 1) :], [rank + 1, 4]), tf.int32)
    return whole[: behind[rank]], behind[:rank]


def _read_instead(tensor: tf.Tensor, other: tf.Tensor) -> None:
    """Has whatever reads a tensor read another one."""
    for reader in tensor.consumers():
        for number, read in enumerate(reader.inputs):
            if read is tensor:
                set_input(reader, number, other)


def body_inputs(loop: tf.Operation) -> list[Any]:
    """What a turn of a loop begins with, and what it ends with, for each of the loop's variables."""
    body = loop_body(loop)
    return list(zip(body.inputs, body.outputs))
