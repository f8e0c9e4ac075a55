"""Every allocation and release of one training step, from TensorFlow's profiler."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain.memory.profile import Recorded, profile_step

_ALLOCATED, _FREED = "MemoryAllocation", "MemoryDeallocation"


class AllocationEvent(NamedTuple):
    """One allocation or release.

    Attributes:
      time_s: Since the first event.
      bytes: What the allocator set aside; negative for a release.
      level_bytes: All that the allocator had given out after the event.
      address: Of the buffer.
      op: The operation that asked; "" for a release.
      region: "output", "temp" (an operation's scratch space), ...; "" for a release.
      dtype: As TensorFlow names it; "" where not known.
      shape: "[8,32,32,64]"; "" where not known.
      requested_bytes: What the operation asked for.
    """

    time_s: float
    bytes: int
    level_bytes: int
    address: int
    op: str
    region: str
    dtype: str
    shape: str
    requested_bytes: int


class Operation(NamedTuple):
    """One run of an operation.

    Attributes:
      name: Of the operation.
      op_type: TensorFlow's, of the optimized graph.
      start_s, end_s: Since the first allocation; negative before it.
    """

    name: str
    op_type: str
    start_s: float
    end_s: float


class Trace(NamedTuple):
    """What the device's allocator did during a step.

    Attributes:
      base_bytes: Given out already when the step began: weights, optimizer slots, the batch.
      events: In the order of time.
      operations: What ran, by the time at which it began.
    """

    base_bytes: int
    events: tuple[AllocationEvent, ...]
    operations: tuple[Operation, ...] = ()

    @property
    def peak_index(self) -> int:
        return max(range(len(self.events)), key=lambda k: self.events[k].level_bytes)

    @property
    def peak_bytes(self) -> int:
        """The highest level over the resting one, as the allocator counts it."""
        return max(0, self.events[self.peak_index].level_bytes - self.base_bytes)

    def levels(self, parts: int) -> list[int]:
        """The highest level over the resting one, bytes, in each of so many equal parts of the time."""
        begin_s, end_s = self.events[0].time_s, self.events[-1].time_s
        highest = [0] * parts
        last, level = 0, 0
        for event in self.events:
            share = (event.time_s - begin_s) / max(end_s - begin_s, 1e-9)
            part = min(int(share * parts), parts - 1)
            for between in range(last, part + 1):
                highest[between] = max(highest[between], level)
            last, level = part, event.level_bytes - self.base_bytes
            highest[part] = max(highest[part], level)
        return highest

    def live_at(self, index: int) -> list[AllocationEvent]:
        """Allocations of this step that are alive after event `index`, oldest first."""
        live: dict[int, AllocationEvent] = {}
        for event in self.events[: index + 1]:
            if event.bytes < 0:
                live.pop(event.address, None)
            else:
                live[event.address] = event
        return list(live.values())

    def releases(self) -> dict[int, int]:
        """By number of an allocation: that of the event which released its buffer. Some stay after the step."""
        found: dict[int, int] = {}
        alive: dict[int, int] = {}
        for number, event in enumerate(self.events):
            if event.bytes > 0:
                alive[event.address] = number
            elif event.address in alive:
                found[alive.pop(event.address)] = number
        return found

    def timeline(self) -> tuple[list[float], list[int]]:
        """(seconds, bytes over the resting level) after each event."""
        return [e.time_s for e in self.events], [e.level_bytes - self.base_bytes for e in self.events]


class NothingRecordedError(RuntimeError):
    """The profiler recorded no allocation of a step."""


def trace_step(step: Callable[[], Any]) -> Trace:
    """Runs `step` once under the profiler; no warm-up.

    Raises:
      NothingRecordedError: All buffers are too small, or this TensorFlow build records none.
      RuntimeError: The profiler runs already.
    """
    recorded = profile_step(step)
    found = [event for event in recorded if event.name in (_ALLOCATED, _FREED)]
    if not found:
        raise NothingRecordedError(
            "The step's profile has no allocations. TensorFlow records no buffers under 256 kB: pass a larger "
            "batch. A network whose tensors are all smaller needs no plan, and no limit. If it is larger, this build "
            "records none."
        )
    found.sort(key=lambda event: event.start_ps)
    return _trace_of_device(found)._replace(operations=_operations(recorded, found[0].start_ps))


def _operations(recorded: Sequence[Recorded], origin_ps: int) -> tuple[Operation, ...]:
    """Of the profile's events those that are an operation's run."""
    runs = ((event, event.operation()) for event in recorded)
    found = (
        Operation(*run, (event.start_ps - origin_ps) / 1e12, (event.end_ps - origin_ps) / 1e12)
        for event, run in runs
        if run is not None
    )
    return tuple(sorted(found, key=lambda operation: operation.start_s))


def _trace_of_device(found: Sequence[Recorded]) -> Trace:
    """The events of the allocator that gave out most: the device's own."""
    given: collections.Counter = collections.Counter()
    parted = [(event, event.values()) for event in found]
    for event, values in parted:
        if event.name == _ALLOCATED:
            given[values["allocator_name"]] += int(values["allocation_bytes"])
    allocator = given.most_common(1)[0][0]
    origin_ps = found[0].start_ps
    events = tuple(
        _event((event.start_ps - origin_ps) / 1e12, event.name, values)
        for event, values in parted
        if values["allocator_name"] == allocator
    )
    return Trace(events[0].level_bytes - events[0].bytes, events)


def _event(time_s: float, name: str, values: dict) -> AllocationEvent:
    size = int(values["allocation_bytes"])
    allocated = name == _ALLOCATED
    return AllocationEvent(
        time_s,
        size if allocated else -size,
        int(values["bytes_allocated"]),
        int(values["addr"]),
        str(values.get("tf_op", "")),
        str(values.get("region_type", "")),
        _dtype_name(int(values.get("data_type", 0))),
        str(values.get("shape", "")),
        int(values["requested_bytes"]),
    )


def _dtype_name(number: int) -> str:
    try:
        return tf.as_dtype(number).name if number else ""
    except TypeError:
        return ""
