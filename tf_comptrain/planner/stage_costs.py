"""What a stage takes: seconds and bytes of any stretch of layers, on so many devices, split in a way."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tf_comptrain.planner.hardware import CodecSpeed, Hardware, Link
from tf_comptrain.planner.holdings import Holdings
from tf_comptrain.planner.layers import Layer, LayerChain
from tf_comptrain.planner.stages import BATCH, CHANNELS, ROWS
from tf_comptrain.planner.task_graph import OffloadOption, RebuildOption

Floats = NDArray[np.float64]
_COLUMNS = (
    "forward_s", "backward_s", "forward_launch_s", "backward_launch_s", "weight_bytes", "output_bytes", "skip_bytes",
    "entry_bytes", "workspace_bytes", "halo_bytes", "update_s",
)  # fmt: skip
_ROUNDING = 1e-6  # bytes, so that what just fits does
_NO_VALUES = "bits"  # a codec that does not hold values, which another stage needs


class StageRange(NamedTuple):
    """A stage by numbers.

    Attributes:
      start, end: Of layers.
      devices: How many.
      split: "batch", "channels" or "rows".
    """

    start: int
    end: int
    devices: int
    split: str


class Part(NamedTuple):
    """Every layer, as one of `devices` that split it has it for one microbatch; arrays over the layers.

    Attributes:
      forward_s, backward_s: Seconds, with what has to be sent meanwhile; what holding tensors adds apart.
      base_s: The sum of both, up to each layer.
      sync_s: Of summing gradients, latency apart.
      latency_s: Of summing gradients, once.
      update_s: Of the optimizer, up to each layer.
      state_bytes: Weights, sums of gradients and slots, up to each layer; see `_state`.
      working_bytes: What has to be free while a layer runs: workspace, its tensors restored, and those on their way.
      cross_bytes: Of what crosses a border behind each layer.
      entry_bytes: What a stage that begins with a layer holds beside what its layers save.
      held_part: A device's part of what the whole batch holds, and of the seconds that holding it takes.
      reach: For each layer, the first behind it that cannot be split so.
    """

    forward_s: Floats
    backward_s: Floats
    base_s: Floats
    sync_s: Floats
    latency_s: float
    update_s: Floats
    state_bytes: Floats
    working_bytes: Floats
    cross_bytes: Floats
    entry_bytes: Floats
    held_part: float
    reach: NDArray[np.int64]


class StageCosts:
    """Costs of the stages of a chain of layers on a machine.

    Args:
      chain: The model.
      hardware: The machine.
      memory_bytes: The most that a device may hold.
    """

    def __init__(self, chain: LayerChain, hardware: Hardware, memory_bytes: int):
        self.chain, self.hardware, self.memory_bytes = chain, hardware, memory_bytes
        self.count = len(chain.layers)
        self.with_offload, self.without_offload = Holdings(chain), Holdings(chain, offload=False)
        self.of = {c: np.array([getattr(layer, c) for layer in chain.layers], float) for c in _COLUMNS}
        restored = np.array([_restored_bytes(layer) for layer in chain.layers])
        moving = np.array([_moving_bytes(layer) for layer in chain.layers])
        self._working = self.of["workspace_bytes"] + restored + np.concatenate(([0.0], moving[:-1]))
        self.part = functools.lru_cache(None)(self._part)
        self.worked_out: dict[tuple, Any] = {}

    def holdings(self, split: str) -> Holdings:
        """Choices of tensors. Devices that split channels have all of the input each, and copy none of it out."""
        return self.without_offload if split == CHANNELS else self.with_offload

    def is_possible(self, microbatches: int, devices: int, split: str) -> bool:
        """Whether the batch can be divided so, and any layer at all be split."""
        if devices == 1:
            return split == BATCH
        nodes = self.hardware.node_devices
        if nodes and devices > nodes and devices % nodes:
            return False
        if split == BATCH and self.chain.batch // microbatches % devices:
            return False
        return any(split in layer.splits for layer in self.chain.layers)

    def _part(self, microbatches: int, devices: int, split: str) -> Part:
        work = 1 / (microbatches * devices)
        held = 1 / microbatches if split == CHANNELS else work
        sends_forward, sends_backward = self._inside_s(microbatches, devices, split)
        of = self.of
        forward = of["forward_launch_s"] + work * of["forward_s"] + sends_forward
        backward = of["backward_launch_s"] + work * of["backward_s"] + sends_backward
        weights = of["weight_bytes"] / (devices if split == CHANNELS else 1)
        synced = devices > 1 and split != CHANNELS and bool(weights.any())
        latency = self.hardware.all_reduce_s(0, devices) if synced else 0.0
        sync = np.array(
            [self.hardware.all_reduce_s(w, devices) - latency if synced else 0.0 for w in weights]
        )
        update = of["update_s"] / (devices if split == CHANNELS else 1)
        return Part(
            forward,
            backward,
            running_sums(forward + backward),
            sync,
            latency,
            running_sums(update),
            running_sums(of["weight_bytes"] * self._state(microbatches, devices, split)),
            held * self._working + weights,
            (of["output_bytes"] + of["skip_bytes"]) * held,
            of["entry_bytes"] * held,
            held,
            self._reach(devices, split),
        )

    def _state(self, microbatches: int, devices: int, split: str) -> float:
        """Bytes of weights, slots, gradients, and copies of other devices' weights, for each byte of weights.

        Each weight is on one device of the stage, with what is kept for it. The gradients of one device and a single
        microbatch are used up as they are made; sums of several microbatches stay, and parts of several devices may all
        wait for the slowest one's.
        """
        part = 1 / devices if split == CHANNELS else 1.0
        others = 1 / devices if split == CHANNELS else 1 - 1 / devices
        copies_and_gradients = others + part if devices > 1 else 0.0
        sums = 1 if microbatches > 1 else 0
        return (1 + self.chain.slots + sums) / devices + copies_and_gradients

    def _inside_s(self, microbatches: int, devices: int, split: str) -> tuple[Floats, Floats]:
        """Seconds of what the devices of a stage send each other in each layer's forward and backward pass."""
        none = np.zeros(self.count)
        if devices == 1 or split == BATCH:
            return none, none
        if split == ROWS:
            link, halo = self._inner_link(devices), self.of["halo_bytes"]
            seconds = np.where(halo > 0, link.latency_s + halo / microbatches / link.bytes_per_s, 0.0)
            return seconds, seconds
        output = self.of["output_bytes"] / microbatches
        summed = np.array([self.hardware.all_reduce_s(size, devices) if size else 0.0 for size in output])
        return summed / 2, np.concatenate(([0.0], summed[:-1]))  # gathered; the input's gradient summed up

    def _inner_link(self, devices: int) -> Link:
        return self.hardware.link(0, devices - 1)

    def _reach(self, devices: int, split: str) -> NDArray[np.int64]:
        reach, last = np.zeros(self.count, int), self.count
        for place in range(self.count - 1, -1, -1):
            if devices > 1 and split not in self.chain.layers[place].splits:
                last = place
            reach[place] = last
        return reach

    def room(self, part: Part, ahead: int, start: int, ends: NDArray[np.int64]) -> Floats:
        """Bytes, for the whole batch, in which a stage from `start` up to each of `ends` may hold saved tensors.

        Args:
          part: How each device has a layer.
          ahead: Microbatches that it holds at once.
          start, ends: Numbers of layers; `ends` rise by one.
        """
        fixed = self.fixed_bytes(part, start, ends)
        return ((self.memory_bytes + _ROUNDING - fixed) / ahead - part.entry_bytes[start]) / part.held_part

    def fixed_bytes(self, part: Part, start: int, ends: NDArray[np.int64]) -> Floats:
        """What a device of the stage has beside what it holds of each microbatch."""
        state = part.state_bytes[ends] - part.state_bytes[start]
        first = int(ends[0])
        working = np.maximum.accumulate(part.working_bytes[start : int(ends[-1])])[first - start - 1 :]
        behind = np.where(ends < self.count, part.cross_bytes[ends - 1], 0.0)
        return state + working + behind + (part.cross_bytes[start - 1] if start else self.chain.input_bytes)

    def least_peak_bytes(
        self, part: Part, split: str, ahead: int, start: int, ends: NDArray[np.int64]
    ) -> Floats:
        """The smallest peak of a stage from `start` up to each of `ends`; see `room`."""
        held = part.held_part * self.holdings(split).least_bytes(start, ends) + part.entry_bytes[start]
        return self.fixed_bytes(part, start, ends) + ahead * held

    def bound_s(self, part: Part, split: str, ahead: int, start: int, ends: NDArray[np.int64]) -> Floats:
        """No stage from `start` up to each of `ends` takes fewer seconds for a microbatch; infinite: none fits."""
        room = self.room(part, ahead, start, ends)
        added = self.holdings(split).bound_s(start, ends, room)
        return part.base_s[ends] - part.base_s[start] + part.held_part * added

    def finished_s(
        self, part: Part, step_s: Floats, seconds: Floats, start: int, ends: NDArray[np.int64]
    ) -> Floats:
        """No less passes until the weights of stages from `start` up to each of `ends` are updated.

        The sums of gradients begin while the last backward pass runs. How long that is depends on how tensors are held;
        without what that takes it is known, and the step is then shorter by no more than it.

        Args:
          part: How each device has a layer.
          step_s: Until the end of the last backward pass, at least.
          seconds: Of a microbatch, at least: every path to that end has one whole microbatch in it.
          start, ends: Numbers of layers; `ends` rise by one, but may be repeated.
        """
        finish = part.latency_s + part.update_s[ends] - part.update_s[start]
        if not part.sync_s.any():
            return step_s + finish
        stop = int(ends.max())
        lead = np.cumsum(part.sync_s[start:stop]) - np.cumsum(part.backward_s[start:stop])
        lead = np.maximum.accumulate(lead + part.backward_s[start:stop])[ends - start - 1]
        added = seconds - (part.base_s[ends] - part.base_s[start])
        return step_s + finish + np.maximum(part.sync_s[start], lead - added)

    def border_bound_s(self, microbatches: int, devices: int, last: int, starts: NDArray[np.int64]) -> Floats:
        """No less is needed to send a microbatch over the border in front of a layer, and its gradient back.

        Args:
          microbatches: Of a step.
          devices: Of the stage in front of the border.
          last: Number of the last of them.
          starts: Numbers of the layers behind it.
        """
        link = self.hardware.link(last, last + 1)
        sizes = (self.of["output_bytes"] + self.of["skip_bytes"])[starts - 1] / microbatches / devices
        coded = [
            1 / c.encode_bytes_per_s + 1 / c.decode_bytes_per_s + 1 / c.ratio / link.bytes_per_s
            for c in self.codecs().values()
        ]
        a_byte = min([1 / link.bytes_per_s, *coded])
        return 2 * link.latency_s + sizes * (a_byte + 1 / link.bytes_per_s)

    def crossing_bytes(self, microbatches: int, start: int) -> float:
        """Of one microbatch, over the border in front of a layer."""
        return float(self.of["output_bytes"][start - 1] + self.of["skip_bytes"][start - 1]) / microbatches

    def codecs(self) -> dict[str, CodecSpeed]:
        """Those whose streams another stage can read."""
        return {name: codec for name, codec in self.hardware.codecs.items() if name != _NO_VALUES}


def running_sums(values: Floats) -> Floats:
    """The sums of the first 0, 1, 2, ... values."""
    return np.concatenate(([0.0], np.cumsum(values)))


def _restored_bytes(layer: Layer) -> float:
    """What is there twice while a layer runs, since it is held in another way."""
    working = [o.working_bytes for s in layer.saved for o in s.options if isinstance(o, RebuildOption)]
    return float(sum(s.bytes for s in layer.saved if s.options) + max(working, default=0))


def _moving_bytes(layer: Layer) -> float:
    return float(sum(s.bytes for s in layer.saved if any(isinstance(o, OffloadOption) for o in s.options)))
