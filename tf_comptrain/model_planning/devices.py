"""A model over several devices: its layers as the planner takes them, and the plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.model_planning.costs import calibrate
from tf_comptrain.model_planning.model_device_plan import ModelDevicePlan
from tf_comptrain.placement import splits
from tf_comptrain.planner import (
    Hardware,
    Layer,
    LayerChain,
    Offload,
    Progress,
    Saved,
    Stream,
    plan_devices,
)
from tf_comptrain.planner.stages import ROWS

_L = keras.layers
# Gradients of these need neither input nor output; those of `_OF_OUTPUT` only the output.
_OF_NEITHER = (
    _L.Add, _L.Average, _L.AveragePooling2D, _L.Concatenate, _L.Cropping2D, _L.Flatten, _L.GlobalAveragePooling2D,
    _L.Permute, _L.Rescaling, _L.Reshape, _L.Subtract, _L.UpSampling2D, _L.ZeroPadding2D,
)  # fmt: skip
_OF_OUTPUT = (_L.ReLU, _L.Softmax)
_NO_VALUES = "bits"


class _Call(NamedTuple):
    operation: Any
    inputs: list
    outputs: list


def plan_over_devices(
    model: keras.Model,
    batch_size: int,
    memory: int | str | None,
    devices: int,
    hardware: Hardware | None,
    budget_s: float,
    progress: Callable[[Progress], None] | None,
) -> ModelDevicePlan:
    """A plan for a model on so many devices of a described machine, or on several like this one's.

    Raises:
      ValueError: See `chain_of_model` and `planner.plan_devices`.
    """
    machine = calibrate()._replace(devices=devices) if hardware is None else hardware
    chain = chain_of_model(model, batch_size, machine, offload=hardware is not None)
    return ModelDevicePlan(*plan_devices(chain, machine, memory, devices, budget_s, progress))


def chain_of_model(model: keras.Model, batch_size: int, hardware: Hardware, offload: bool) -> LayerChain:
    """A functional or Sequential model as the planner takes it, from its graph: no step is run.

    Seconds are those of the machine's roofline: operations of weights (two for each weight and position of the output),
    or bytes of inputs and outputs, whichever takes longer; twice as long for the backward pass. A tensor is saved where
    the gradient of a layer needs it.

    Args:
      model: Built.
      batch_size: Samples of a step, over all devices.
      hardware: The machine.
      offload: Whether tensors may go to the host.

    Raises:
      ValueError: The model has no graph, or calls a layer twice.
    """
    calls = [
        _Call(*call)
        for call in _keras.graph_calls(_keras.functional_of(model))
        if not isinstance(call[0], _L.InputLayer)
    ]
    if not calls:
        raise ValueError(
            f"Model {model.name!r} has no graph of layers, so that it has no stages: make it of keras.Input."
        )
    names = [call.operation.name for call in calls]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(
            f"Model {model.name!r} calls {twice!r} more than once: its calls would have to be on one stage."
        )
    made = {id(tensor): k for k, call in enumerate(calls) for tensor in call.outputs}
    reads: dict[int, list[int]] = {}
    tensors: dict[int, Any] = {}
    for place, call in enumerate(calls):
        for tensor in call.inputs:
            reads.setdefault(id(tensor), []).append(place)
            tensors[id(tensor)] = tensor
    layers = []
    for place, call in enumerate(calls):
        held = [
            _saved(tensors[key], batch_size, hardware, offload, f"{call.operation.name}/input{number}")
            for number, key in enumerate(dict.fromkeys(map(id, call.inputs)))
            if reads[key][0] == place and _is_saved(key, reads, made, calls)
        ]
        crossing = [
            (made[key], _bytes(tensors[key], batch_size))
            for key, places in reads.items()
            if key in made and made[key] <= place < places[-1]
        ]
        own = sum(size for maker, size in crossing if maker == place)
        skip = sum(size for maker, size in crossing if maker < place)
        layers.append(_layer(call, batch_size, hardware, own, skip, tuple(held)))
    slots = _slots(model)
    return LayerChain(model.name, tuple(layers), batch_size, slots)


def _layer(
    call: _Call, batch: int, hardware: Hardware, output: int, skip: int, held: tuple[Saved, ...]
) -> Layer:
    operation = call.operation
    weights = getattr(operation, "trainable_weights", [])
    moved = sum(_bytes(tensor, batch) for tensor in (*call.inputs, *call.outputs))
    seconds = hardware.task_s(_flops(operation, call.outputs, batch), moved) - hardware.launch_s
    weight_bytes = sum(math.prod(w.shape) * tf.as_dtype(w.dtype).size for w in weights)
    return Layer(
        operation.name,
        seconds,
        2 * seconds,
        hardware.launch_s,
        2 * hardware.launch_s,
        weight_bytes=weight_bytes,
        output_bytes=output,
        skip_bytes=skip,
        workspace_bytes=moved,
        halo_bytes=_halo_bytes(operation, call.inputs, batch),
        update_s=7 * weight_bytes / hardware.bytes_per_s,
        splits=_splits(operation, call.outputs),
        saved=held,
    )


def _flops(operation: Any, outputs: list, batch: int) -> float:
    positions = math.prod(outputs[0].shape[1:-1]) * batch
    kernels = [w for w in getattr(operation, "trainable_weights", []) if len(w.shape) > 1]
    if isinstance(operation, _L.Embedding):
        return 0.0
    return float(sum(2 * math.prod(w.shape) * positions for w in kernels))


def _bytes(tensor: Any, batch: int) -> int:
    return math.prod(size or 1 for size in tensor.shape[1:]) * batch * tf.as_dtype(tensor.dtype).size


def _is_saved(key: int, reads: dict[int, list[int]], made: dict[int, int], calls: list[_Call]) -> bool:
    """Whether the gradient of a layer that reads the tensor, or of the one that makes it, needs it."""
    if key in made and isinstance(calls[made[key]].operation, _OF_OUTPUT):
        return True
    return any(not isinstance(calls[k].operation, (*_OF_NEITHER, *_OF_OUTPUT)) for k in reads[key])


def _saved(tensor: Any, batch: int, hardware: Hardware, offload: bool, name: str) -> Saved:
    size = _bytes(tensor, batch)
    if not tf.as_dtype(tensor.dtype).is_floating:
        return Saved(name, size)
    options: list[Stream | Offload] = [
        Stream(codec, int(size / c.ratio), size / c.encode_bytes_per_s, size / c.decode_bytes_per_s)
        for codec, c in hardware.codecs.items()
        if codec != _NO_VALUES
    ]
    if offload:
        seconds = hardware.host_link.seconds(size)
        options.append(Offload(seconds, seconds))
    return Saved(name, size, tuple(options))


def _halo_bytes(operation: Any, inputs: list, batch: int) -> int:
    """Of the rows of its input that a part of an image needs from one neighbour."""
    window = getattr(operation, "kernel_size", None) or getattr(operation, "pool_size", None)
    if not window or len(inputs[0].shape) != 4 or not inputs[0].shape[1]:
        return 0
    rows = max(int(window[0]) - 1, 0) / 2
    return math.ceil(rows * _bytes(inputs[0], batch) / inputs[0].shape[1])


def _splits(operation: Any, outputs: list) -> tuple[str, ...]:
    is_image = len(outputs[0].shape) == 4
    return tuple(split for split in splits.ways_of(operation) if is_image or split != ROWS)


def _slots(model: keras.Model) -> float:
    """Bytes of the optimizer's state for each byte of weights."""
    optimizer = getattr(model, "optimizer", None)
    trained = sum(math.prod(w.shape) for w in model.trainable_weights)
    if optimizer is None or not trained:
        return 0.0
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    return sum(math.prod(v.shape) for v in optimizer.variables) / trained
