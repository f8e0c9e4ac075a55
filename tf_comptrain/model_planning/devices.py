"""A model over several devices: its layers as the planner takes them, and the plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, arguments
from tf_comptrain.compression.model import compress_model, restore_model
from tf_comptrain.model_planning.costs import calibrate
from tf_comptrain.model_planning.model_device_plan import ModelDevicePlan
from tf_comptrain.model_planning.traced_layers import LayerBytes, traced_layers
from tf_comptrain.placement import splits
from tf_comptrain.placement.values import CHANNEL_AXIS, ROW_AXIS
from tf_comptrain.planner import (
    Hardware,
    Layer,
    LayerChain,
    OffloadOption,
    Progress,
    Saved,
    StreamOption,
    plan_devices,
)
from tf_comptrain.planner.stages import BATCH, CHANNELS, ROWS
from tf_comptrain.storage import KEEP

_L = keras.layers
_PROBE = 32  # samples at most that are traced
# Of the memory, for what is on its way.
_SPARE = 0.1


class _LayerCall(NamedTuple):
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
    streams: Mapping[str, Any],
    progress: Callable[[Progress], None] | None,
) -> ModelDevicePlan:
    """A plan for a model on so many devices of a described machine, or on several like this one's.

    Raises:
      ValueError: See `chain_of_model` and `planner.plan_devices`.
    """
    machine = calibrate() if hardware is None else hardware
    if hardware is None or hardware.devices >= devices:
        machine = machine._replace(devices=devices)
    chain = chain_of_model(model, batch_size, machine, streams, offload=hardware is not None)
    limit = machine.memory_bytes if memory is None else arguments.size_in_bytes("memory", memory)
    found = plan_devices(chain, machine, int(limit * (1 - _SPARE)), devices, budget_s, progress)
    return ModelDevicePlan(*found._replace(memory_bytes=limit))


def chain_of_model(
    model: keras.Model, batch_size: int, hardware: Hardware, streams: Mapping[str, Any], offload: bool
) -> LayerChain:
    """A functional or Sequential model as the planner takes it, from its graph and its traced step: none is run.

    Seconds are those of the machine's roofline: operations of weights (two for each weight and position of the output),
    or bytes of inputs and outputs, whichever takes longer; twice as long for the backward pass. What a layer saves is
    kept, or held as `compress_model` holds it.

    Args:
      model: Compiled; neither compressed nor placed.
      batch_size: Samples of a step, over all devices.
      hardware: The machine.
      streams: How tensors are encoded, as arguments of `compress_model`.
      offload: Whether tensors may go to the host.

    Raises:
      ValueError: The model has no graph, or calls a layer twice.
    """
    calls = [
        _LayerCall(*call)
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
    kept, held = _traced(model, [call.operation for call in calls], batch_size, streams)
    layers = []
    for place, call in enumerate(calls):
        crossing = [
            (made[key], _bytes(tensors[key], batch_size))
            for key, places in reads.items()
            if key in made and made[key] <= place < places[-1]
        ]
        name = call.operation.name
        own = sum(size for maker, size in crossing if maker == place)
        skip = sum(size for maker, size in crossing if maker < place)
        saved = _saved(name, kept[name].saved, held[name].saved, hardware, streams["codec"], offload)
        layers.append(_layer(call, batch_size, hardware, own, skip, kept[name], saved))
    inputs = sum(_bytes(tensor, batch_size) for tensor in _keras.functional_of(model).inputs)
    layers[0] = layers[0]._replace(entry_bytes=inputs)
    return LayerChain(model.name, tuple(layers), batch_size, _slots(model), inputs)


def _traced(
    model: keras.Model, operations: Sequence[Any], batch_size: int, streams: Mapping[str, Any]
) -> tuple[dict[str, LayerBytes], dict[str, LayerBytes]]:
    """Bytes of each layer for the whole batch: kept, and held as `compress_model` does by itself."""
    samples = min(batch_size, _PROBE)

    def traced(storage: Any) -> dict[str, LayerBytes]:
        report = compress_model(model, storage=storage, **streams)
        try:
            found = traced_layers(model, operations, samples, report)
        finally:
            restore_model(model)
        factor = batch_size / samples
        sizes = ((operation.name, found.get(operation.name, LayerBytes())) for operation in operations)
        return {
            name: LayerBytes(*(math.ceil(size * factor) for size in of_layer)) for name, of_layer in sizes
        }

    return traced({operation.name: KEEP for operation in operations}), traced(None)


def _layer(
    call: _LayerCall,
    batch: int,
    hardware: Hardware,
    output: int,
    skip: int,
    traced: LayerBytes,
    saved: tuple[Saved, ...],
) -> Layer:
    operation = call.operation
    weights = getattr(operation, "trainable_weights", [])
    moved = sum(_bytes(tensor, batch) for tensor in (*call.inputs, *call.outputs))
    seconds = hardware.task_s(_flops(operation, call.outputs, batch), moved) - hardware.launch_s
    weight_bytes = _keras.bytes_of(*weights)
    return Layer(
        operation.name,
        seconds,
        2 * seconds,
        hardware.launch_s,
        2 * hardware.launch_s,
        weight_bytes=weight_bytes,
        output_bytes=output,
        skip_bytes=skip,
        workspace_bytes=traced.workspace,
        entry_bytes=traced.entering,
        halo_bytes=_halo_bytes(operation, call.inputs, batch),
        update_s=7 * weight_bytes / hardware.bytes_per_s,
        splits=_splits(operation, call.outputs, hardware.devices),
        saved=saved,
    )


def _flops(operation: Any, outputs: list, batch: int) -> float:
    positions = math.prod(outputs[0].shape[1:-1]) * batch
    kernels = [w for w in getattr(operation, "trainable_weights", []) if len(w.shape) > 1]
    if isinstance(operation, _L.Embedding):
        return 0.0
    return float(sum(2 * math.prod(w.shape) * positions for w in kernels))


def _bytes(tensor: Any, batch: int) -> int:
    return math.prod(size or 1 for size in tensor.shape[1:]) * batch * tf.as_dtype(tensor.dtype).size


def _saved(
    name: str, plain: int, held: int, hardware: Hardware, codec: Any, offload: bool
) -> tuple[Saved, ...]:
    """What a layer saves as one tensor, since it is held in one way."""
    if not plain:
        return ()
    options: list[StreamOption | OffloadOption] = []
    name_of_codec = getattr(codec, "name", codec)
    speed = hardware.codecs.get(name_of_codec) or next(iter(hardware.codecs.values()), None)
    if speed is not None and held < plain:
        options.append(
            StreamOption(
                name_of_codec, held, plain / speed.encode_bytes_per_s, plain / speed.decode_bytes_per_s
            )
        )
    if offload:
        seconds = hardware.host_link.seconds(plain)
        options.append(OffloadOption(seconds, seconds))
    return (Saved(name, plain, tuple(options)),)


def _halo_bytes(operation: Any, inputs: list, batch: int) -> int:
    """Of the rows of its input that a part of an image needs from one neighbour."""
    window = getattr(operation, "kernel_size", None) or getattr(operation, "pool_size", None)
    if not window or len(inputs[0].shape) != 4 or not inputs[0].shape[1]:
        return 0
    rows = max(int(window[0]) - 1, 0) / 2
    return math.ceil(rows * _bytes(inputs[0], batch) / inputs[0].shape[1])


def _splits(operation: Any, outputs: list, devices: int) -> tuple[str, ...]:
    """Those in which every device gets a part, however many of them a stage has."""
    sizes = {CHANNELS: [output.shape[CHANNEL_AXIS] for output in outputs]}
    if all(len(output.shape) == 4 for output in outputs):
        sizes[ROWS] = [output.shape[ROW_AXIS] for output in outputs]
    return tuple(
        split
        for split in splits.ways_of(operation)
        if split == BATCH or split in sizes and all((size or 0) >= devices for size in sizes[split])
    )


def _slots(model: keras.Model) -> float:
    """Bytes of the optimizer's state for each byte of weights."""
    optimizer = getattr(model, "optimizer", None)
    trained = sum(math.prod(w.shape) for w in model.trainable_weights)
    if optimizer is None or not trained:
        return 0.0
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    return sum(math.prod(v.shape) for v in optimizer.variables) / trained
