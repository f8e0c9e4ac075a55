"""A model's layers on several devices of one program: `ct.distribute.place`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, arguments, codecs, native
from tf_comptrain.codecs import Codec, ErrorBound
from tf_comptrain.compression.instrumentation import is_compressed
from tf_comptrain.graph import after_gradient
from tf_comptrain.placement import splits
from tf_comptrain.placement.accumulation import seen_obstacle
from tf_comptrain.placement.microbatches import train_step
from tf_comptrain.placement.placed import PlacedCall, StageDevices
from tf_comptrain.placement.values import Send
from tf_comptrain.planner.stages import SPLITS, Stage
from tf_comptrain.storage import DEFAULT_BOUNDS

_placed: weakref.WeakKeyDictionary[Any, list[tuple[Any, str]]] = (
    weakref.WeakKeyDictionary()
)  # weights, device before


def place(
    model: keras.Model,
    stages: Sequence[Stage],
    microbatches: int = 1,
    devices: Sequence[str] | None = None,
    codec: str | Codec | None = None,
    error_bound: float | ErrorBound | None = None,
) -> None:
    """Puts a model's layers on several devices of this program, in place; `model.fit` and `ct.fit` train it there.

    Each layer runs on the devices of its stage, forward and backward. Its weights lie there too, with their gradients'
    sums and the optimizer's slots: of a stage of several devices each has about as many bytes of them, and a copy of
    the others while they are read. A stage of several devices divides its work: by samples ("batch"), by output
    channels of convolutions and dense layers ("channels"), or by rows of images ("rows"). With microbatches a step
    takes its batch in that many parts, in the order 1F1B: stage s of S begins with a microbatch when it has gone
    backward through the one S - s before, so that it holds the activations of S - s at most. The gradients are added
    up, and the weights updated once. Losses, metrics and weights are, to rounding, those of the whole batch on one
    device. Not so batch normalizations: their statistics are those of a microbatch, with split "batch" of the part of
    it that a device has.

    Before or after `compress_model`: what is held crosses into the backward pass as a stream, on the device that made
    it. A tensor that another stage reads is sent forward as it is, or as a stream of `codec`, with what is restored of
    which that stage computes. Gradients are sent as they are.

    Args:
      model: Functional or Sequential, built, on TensorFlow's executor (`jit_compile=False`).
      stages: In the order of the model, whose layers are those of `model.layers`; inputs
        may be left out, and operations that are no layers, which then go with what they read.
      microbatches: Parts of every batch.
      devices: Names that the numbers of the stages stand for. Default: all logical GPUs, or without any all
        logical CPUs, in TensorFlow's order.
      codec: What encodes tensors that go from stage to stage, such as "zvc" (lossless) or "plane"; None: nothing does.
      error_bound: Of that codec, as in `compress_model`; None: 0.02 sigma, since the error travels on.

    Raises:
      TypeError: `model` or `stages` are of another kind.
      ValueError: A layer that is unknown, missing, on two stages or behind one that reads it; a device that is
        not there; a layer that cannot be divided as its stage is; weights that layers of two stages share; a model that
        is placed already, or was made under a strategy, or is compiled by XLA.

    Examples:
      >>> Stage = ct.distribute.Stage
      >>> stages = [Stage(("conv1", "relu1"), (0,)), Stage(("flatten", "dense"), (1,))]
      >>> ct.distribute.place(model, stages, microbatches=4)
      >>> model.fit(images, labels, batch_size=64)

    Reference:
      Narayanan et al., PipeDream: generalized pipeline parallelism for DNN training (2019).
    """
    _keras.require_keras_3("tf_comptrain.distribute.place", "Use tf.device in the layers")
    count = arguments.whole("microbatches", microbatches, least=1)
    functional = _functional_of(model)
    send = _send(codec, error_bound)
    stages = _stages(stages)
    places = _places(stages, _names_of(devices))
    stage_of = _stage_of(functional, stages)
    _check_weights(functional, stage_of)
    if count > 1 and _keras.is_compiled(model) and (obstacle := seen_obstacle(model)):
        raise ValueError(f"`microbatches` must be 1 for {model.name!r}: {obstacle}. Received: {count}.")
    splits.check(_keras.graph_calls(functional), {key: places[number] for key, number in stage_of.items()})
    before: list[tuple[Any, str]] = []
    stage_of_weight: dict[int, int] = {}
    weights_of: list[list[Any]] = [[] for _ in places]
    for layer in _layers(functional):
        stage_of_weight.update((id(weight), stage_of[id(layer)]) for weight in layer.weights)
        weights_of[stage_of[id(layer)]] += _weights(layer)
    for weights, stage in zip(weights_of, places):
        for weight, device in _spread(weights, stage.devices):
            before.append((weakref.ref(weight), weight.value.device))
            _keras.move_weight(weight, device, getattr(model, "optimizer", None))
    call = PlacedCall(functional, places, stage_of, stage_of_weight, send)
    _keras.set_call(functional, call)
    _keras.set_step(model, functools.partial(train_step, call=call, count=count), after_gradient)
    _placed[model] = before
    _keras.forget_traces(model)


def unplace(model: keras.Model) -> None:
    """Undoes `place`; weights keep what they learned, and go back to the device on which they were.

    Raises:
      ValueError: The model is not placed.
    """
    if model not in _placed:
        raise ValueError(
            f"`model` must be placed by ct.distribute.place. Received: {model.name!r}, which is not."
        )
    for weight, device in _placed.pop(model):
        if weight() is not None:
            _keras.move_weight(weight(), device, getattr(model, "optimizer", None))
    _keras.reset_call(_keras.functional_of(model))
    _keras.reset_step(model, stays=is_compressed(model))
    _keras.forget_traces(model)


def _functional_of(model: Any) -> Any:
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a keras.Model. Received: {model!r}.")
    functional = _keras.functional_of(model)
    problem = None
    if _keras.input_specs(model) is None or not _keras.runs_its_graph(functional):
        problem = "is subclassed, or not built: its layers are known only when it runs"
    elif _keras.has_own_train_step(model):
        problem = "has a train step of its own, which knows nothing of microbatches"
    elif model in _placed:
        problem = "is placed already: call ct.distribute.unplace(model) first"
    elif model.distribute_strategy.num_replicas_in_sync > 1:
        problem = "was made under a tf.distribute strategy: make it without, and give stages several devices instead"
    elif _keras.jit_compile(model):
        problem = "is compiled by XLA, which runs on one device: compile it with jit_compile=False"
    if problem:
        raise ValueError(
            f"`model` must be a built functional or Sequential model of this program. Received: {model.name!r}, which "
            f"{problem}."
        )
    return functional


def _send(codec: str | Codec | None, error_bound: float | ErrorBound | None) -> Send | None:
    if codec is None:
        if error_bound is not None:
            raise ValueError(
                f"`error_bound` must have a `codec` to be one of. Received: {error_bound!r} alone."
            )
        return None
    bound = DEFAULT_BOUNDS["nonlinear"] if error_bound is None else ErrorBound.parse(error_bound)
    found = codecs.get(codec)
    native.ops()
    return Send(found, bound)


def _stages(stages: Any) -> list[Stage]:
    if isinstance(stages, Stage) or not isinstance(stages, Sequence) or not stages:
        raise TypeError(f"`stages` must be a list of ct.distribute.Stage. Received: {stages!r}.")
    found = []
    for stage in stages:
        if not isinstance(stage, tuple) or len(stage) != len(Stage._fields):
            raise TypeError(f"`stages` must be a list of ct.distribute.Stage. Received in it: {stage!r}.")
        stage = Stage(*stage)
        if isinstance(stage.layers, str) or not stage.layers or not stage.devices:
            raise ValueError(
                f"`stages` must each have names of layers and numbers of devices. Received: {stage}."
            )
        if stage.split not in SPLITS:
            raise ValueError(
                f"`stages` must be split by one of {', '.join(SPLITS)}. Received: {stage.split!r}."
            )
        found.append(Stage(tuple(stage.layers), tuple(stage.devices), stage.split))
    return found


def _names_of(devices: Sequence[str] | None) -> list[str]:
    """Full names, as TensorFlow gives them to variables."""
    if devices is None:
        logical = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        devices = [device.name for device in logical]
    there = {_full(device.name): device.name for device in tf.config.list_logical_devices()}
    for device in devices:
        if _full(device) not in there:
            raise ValueError(
                f"`devices` must be among those of this program: {', '.join(there.values())}. Received: {device!r}."
            )
    return [_full(device) for device in devices]


def _full(name: str) -> str:
    """A device's name with its job; the string itself where it is none."""
    try:
        spec = tf.DeviceSpec.from_string(name)
    except ValueError:
        return name
    job, replica, task = spec.job or "localhost", spec.replica or 0, spec.task or 0
    return spec.replace(job=job, replica=replica, task=task, device_index=spec.device_index or 0).to_string()


def _places(stages: Sequence[Stage], names: Sequence[str]) -> list[StageDevices]:
    for stage in stages:
        for number in stage.devices:
            if not isinstance(number, int) or not 0 <= number < len(names):
                raise ValueError(
                    f"`stages` must have devices that are there: there are {len(names)}, from 0. Received: {number!r}."
                )
        if len(set(stage.devices)) < len(stage.devices):
            raise ValueError(f"`stages` must name each device once in a stage. Received: {stage.devices}.")
    return [StageDevices(tuple(names[number] for number in stage.devices), stage.split) for stage in stages]


def _stage_of(functional: Any, stages: Sequence[Stage]) -> dict[int, int]:
    """Number of the stage of each operation, by its id. What has no name in `stages` goes with what it reads."""
    named: dict[str, int] = {}
    for number, stage in enumerate(stages):
        for name in stage.layers:
            if name in named:
                raise ValueError(f"`stages` must name each layer once. Received {name!r} twice.")
            named[name] = number
    calls = list(_keras.graph_calls(functional))
    known = {operation.name for operation, _, _ in calls}
    unknown = [name for name in named if name not in known]
    if unknown:
        raise ValueError(
            f"`stages` must have layers of model.layers. Received: {', '.join(map(repr, unknown))}, of which "
            f"{functional.name!r} has none."
        )
    found: dict[int, int] = {}
    made: dict[int, int] = {}  # by tensor
    for operation, inputs, outputs in calls:
        read = max((made[id(tensor)] for tensor in inputs), default=0)
        if not inputs:
            number = 0
        elif operation.name in named:
            number = named[operation.name]
        elif isinstance(operation, keras.layers.Layer):
            raise ValueError(f"`stages` must have every layer. Received none that has {operation.name!r}.")
        else:
            number = max(read, found.get(id(operation), 0))
        if number < read:
            raise ValueError(
                f"`stages` must be in the order of the model: {operation.name!r} of stage {number} reads what stage "
                f"{read} makes. Received: {', '.join(stage.layers[0] + ', ...' for stage in stages)}."
            )
        found[id(operation)] = number
        made.update((id(tensor), number) for tensor in outputs)
    return found


def _layers(functional: Any) -> Iterator[Any]:
    """Of the graph, each once."""
    seen = {id(operation): operation for operation, _, _ in _keras.graph_calls(functional)}
    return (operation for operation in seen.values() if isinstance(operation, keras.layers.Layer))


def _weights(layer: Any) -> list[Any]:
    """What is worth moving: numbers that are trained or averaged, not seeds."""
    return [weight for weight in layer.weights if tf.as_dtype(weight.dtype).is_floating]


def _spread(weights: Sequence[Any], devices: Sequence[str]) -> Iterator[tuple[Any, str]]:
    """A device for each weight, so that every device has about as many bytes of them."""
    taken = dict.fromkeys(devices, 0)
    unique = {id(weight): weight for weight in weights}.values()
    for weight in sorted(unique, key=_keras.bytes_of, reverse=True):
        device = min(taken, key=taken.__getitem__)
        taken[device] += _keras.bytes_of(weight)
        yield weight, device


def _check_weights(functional: Any, stage_of: dict[int, int]) -> None:
    owner: dict[int, Any] = {}
    for layer in _layers(functional):
        for weight in layer.weights:
            other = owner.setdefault(id(weight), layer)
            if stage_of[id(other)] != stage_of[id(layer)]:
                raise ValueError(
                    f"`stages` must have layers that share weights in one stage. Received {other.name!r} and "
                    f"{layer.name!r} in two, which share {weight.path!r}."
                )
