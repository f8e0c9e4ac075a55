"""Stages: what the backward pass makes stays on the devices on which the forward pass ran.

TensorFlow leaves the operations of a gradient unplaced, so that all of them run on the first device, and what they read
is moved there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.tensors import values_of

_RESTORED = "Comptrain>Decompress"


def keep_on_stages(backward: _keras.BackwardPass, replaced: Mapping[str, tf.Tensor]) -> None:
    """Places what is not placed of a backward pass, where the forward pass is on several devices.

    - What makes the gradient of a weight goes where the weight is.
    - Else an operation goes where the forward pass made what it reads; where it reads gradients alone, to those.
    - A stream is decoded where it is read: it, and not the tensor, goes over a border between stages.

    Args:
      backward: The pass, after it was rewired.
      replaced: By name of a gradient that is no longer made: what stands in for it.
    """
    operations = backward.graph.get_operations()
    stages = _stages(operations[: backward.start])
    if len(stages) < 2:
        return
    forward = {
        op.name: op.device for op in operations if op.device in stages
    }  # and the streams that are made of it
    placed = dict(forward)
    free = [op for op in operations[backward.start :] if not op.device and _is_movable(op)]
    others = [op for op in free if op.type != _RESTORED]
    names = {op.name for op in others}
    for op, device in _gradients_of_weights(backward, replaced):
        if op.name in names:
            placed.setdefault(op.name, device)
    _follow_inputs(others, forward, placed)
    for op in free:
        if op.type == _RESTORED:
            placed[op.name] = _device_of_readers(op, placed) or _device_of_inputs(op, forward, placed)
    _follow_inputs(others, forward, placed)
    _place(free, placed)


def follow_variables(graph: tf.Graph, start: int, variables: Sequence[tf.Variable]) -> None:
    """Places what is not placed of an update where the variables are that it reads.

    Keras joins all gradients in one operation, which is on one device; each is read from before that.

    Args:
      graph: Of the step.
      start: Number of the first operation of the update.
      variables: Those whose place counts.
    """
    operations = graph.get_operations()
    for op in operations[start:]:
        for number, tensor in enumerate(op.inputs):
            if tensor.op.type == "IdentityN":
                _keras.set_input(op, number, tensor.op.inputs[tensor.value_index])
    placed = _keras.captured_variables(graph, variables)
    placed.update((op.name, op.device) for op in operations[:start] if op.device)
    free = [op for op in operations[start:] if not op.device and op.name not in placed]
    _follow_inputs(free, placed, placed)
    _place(filter(_is_movable, free), placed)


def _place(operations: Iterable[tf.Operation], placed: Mapping[str, str]) -> None:
    for op in operations:
        if placed.get(op.name):
            _keras.set_device(op, placed[op.name])


def _stages(operations: Iterable[tf.Operation]) -> set[str]:
    """Devices that operations were put on; beside accelerators the host's is none, which only serves them."""
    devices = {op.device for op in operations if op.device}
    hosts = {device for device in devices if tf.DeviceSpec.from_string(device).device_type == "CPU"}
    return devices - hosts or hosts


def _gradients_of_weights(
    backward: _keras.BackwardPass, replaced: Mapping[str, tf.Tensor]
) -> list[tuple[tf.Operation, str]]:
    """What makes each, and the device of the weight."""
    found = []
    for source, gradient in zip(backward.sources, backward.gradients):
        weight, *others = _keras.parts_of(source)  # replicas are placed by their strategy
        gradient = values_of(gradient)
        if gradient is not None and isinstance(weight, tf.Variable) and not others:
            found.append((replaced.get(gradient.name, gradient).op, weight.device))
    return found


def _follow_inputs(
    operations: Iterable[tf.Operation], forward: Mapping[str, str], placed: dict[str, str]
) -> None:
    """Places operations by what they read, until nothing more follows."""
    left = [op for op in operations if op.name not in placed]
    while left:
        found = {op.name: device for op in left if (device := _device_of_inputs(op, forward, placed))}
        if not found:
            return
        placed.update(found)
        left = [op for op in left if op.name not in found]


def _device_of_readers(op: tf.Operation, placed: Mapping[str, str]) -> str:
    """Of the first reader that has one; nowhere: where none has."""
    readers = (placed.get(reader.name, "") for reader in op.outputs[0].consumers())
    return next(filter(None, readers), "")


def _device_of_inputs(op: tf.Operation, forward: Mapping[str, str], placed: Mapping[str, str]) -> str:
    """Where the forward pass made an input, else where the backward pass did; nowhere: where neither says."""
    made = [tensor.op.name for tensor in op.inputs]
    devices = [forward.get(name, "") for name in made] + [placed.get(name, "") for name in made]
    return next(filter(None, devices), "")


def _is_movable(op: tf.Operation) -> bool:
    """Whether TensorFlow does not say itself where an operation runs, which goes with a variable."""
    return not any(tensor.dtype == tf.resource for tensor in (*op.inputs, *op.outputs))
