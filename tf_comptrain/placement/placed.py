"""The call of a model whose layers are on stages."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.placement import splits
from tf_comptrain.placement.values import BATCH_AXIS, Send, Value, run_parts
from tf_comptrain.planner.stages import BATCH


class StageDevices(NamedTuple):
    """Devices of a stage, by their full names, and how they divide its work; see `planner.Stage`."""

    devices: tuple[str, ...]
    split: str


@dataclasses.dataclass(eq=False)
class Microbatch:
    """What the forward pass of a microbatch waits for, and what its backward pass is to be known by.

    Attributes:
      waits: By stage.
      inputs: By stage: what other stages gave it.
    """

    waits: Mapping[int, Sequence[tf.Operation]]
    inputs: dict[int, list[tf.Tensor]] = dataclasses.field(default_factory=dict)


class PlacedCall:
    """The call of a functional model, each operation on the devices of its stage.

    Args:
      model: The functional model.
      stages: In order.
      stage_of: Of each operation, by its id.
      stage_of_weight: Of each weight, by its id.
      send: How tensors go from stage to stage; None: as they are.

    Attributes:
      stages: As given.
      stage_of_weight: As given.
      microbatch: The one whose forward pass is traced now; None outside of a train step.
    """

    def __init__(
        self,
        model: keras.Model,
        stages: Sequence[StageDevices],
        stage_of: Mapping[int, int],
        stage_of_weight: Mapping[int, int],
        send: Send | None = None,
    ):
        self.stages = tuple(stages)
        self.microbatch: Microbatch | None = None
        self._model = model
        self._stage_of = dict(stage_of)
        self._send = send
        self.stage_of_weight = dict(stage_of_weight)

    def __call__(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        _keras.set_masks(self._model, inputs, mask)
        first, last = self.stages[0].devices[0], self.stages[-1].devices[0]

        def enter(tensor: tf.Tensor) -> _Sent:
            return _Sent(Value((tensor,), (tensor.device or first,)), -1)

        def leave(sent: _Sent) -> tf.Tensor:
            return sent.value.whole(last)

        def run(operation: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
            number = self._stage_of[id(operation)]
            values = (self._at(value, number) for value in tf.nest.flatten((args, kwargs)))
            args, kwargs = tf.nest.pack_sequence_as((args, kwargs), list(values))
            with self._once_begun(number):  # also what is read of weights on other devices
                made = _run(self.stages[number], training, operation, call, args, kwargs)
            return tf.nest.map_structure(lambda value: _Sent(value, number), made)

        return _keras.run_graph(self._model, inputs, enter, run, leave, training=training)

    def _once_begun(self, number: int) -> Any:
        """Inside, operations wait until the stage may begin with the microbatch."""
        waits = () if self.microbatch is None else self.microbatch.waits.get(number, ())
        return tf.control_dependencies(list(waits)) if waits else contextlib.nullcontext()

    def _at(self, sent: Any, number: int) -> Any:
        """What an operation of a stage is given for an argument: as it is where that is not of the graph."""
        if not isinstance(sent, _Sent) or sent.number == number:
            return sent.value if isinstance(sent, _Sent) else sent
        if number not in sent.arrived:
            send = self._send if sent.number >= 0 else None  # the model's inputs go as they are
            sent.arrived[number] = self._arrive(sent.value, number, send)
        return sent.arrived[number]

    def _arrive(self, value: Value, number: int, send: Send | None) -> Value:
        """What another stage has made, once the stage may begin with the microbatch."""
        stage = self.stages[number]
        home, count = stage.devices[0], len(stage.devices)
        if count > 1 and stage.split == BATCH:
            if value.axis != BATCH_AXIS or len(value.parts) != count:
                source = value.devices[0]
                value = Value((value.whole(source),), (source,)).divided(BATCH_AXIS, (source,) * count)
            value = value.moved(stage.devices, send)
        elif value.axis in (None, BATCH_AXIS) or len(value.parts) != count:
            value = value.moved((home,) * len(value.parts), send)
            value = Value((value.whole(home),), (home,))
        else:
            value = value.moved(stage.devices, send)
        microbatch = self.microbatch
        if microbatch is None:
            return value
        with self._once_begun(number):
            value = value.mapped(tf.identity)
        floating = [part for part in value.parts if part.dtype.is_floating]
        microbatch.inputs.setdefault(number, []).extend(floating)
        return value


@dataclasses.dataclass(eq=False)
class _Sent:
    """What an operation of a stage has made, and as what other stages have it."""

    value: Value
    number: int
    arrived: dict[int, Value] = dataclasses.field(default_factory=dict)


def _run(
    stage: StageDevices, training: bool | None, operation: Any, call: Any, args: Any, kwargs: Any
) -> Any:
    """Calls an operation on the devices of its stage. Tensors of the graph are a `Value` each, also those returned."""
    if len(stage.devices) == 1:
        return run_parts(call, args, kwargs, stage.devices, None)
    if stage.split == BATCH:
        return run_parts(call, args, kwargs, stage.devices, BATCH_AXIS)
    return splits.run(stage, training, operation, call, args, kwargs)
