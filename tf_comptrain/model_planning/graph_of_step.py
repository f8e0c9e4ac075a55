"""The task graph of a model's step, from one that ran: what its allocator did, operation by operation.

The step that ran holds every tensor in its smallest usual form. Its time is cut where a stream or bits are written or
read, and what lies between two cuts is a task. The workspace of a task is what was alive then beyond the tensors that a
plan decides about, so that the simulator's memory for this way to hold them is what the allocator counted; other
plans differ from it by their own tensors alone.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_comptrain.memory.trace import AllocationEvent, Trace
from tf_comptrain.model_planning.crossing_tensors import BITS, CrossingTensor
from tf_comptrain.planner import (
    Hardware,
    OffloadOption,
    PlanState,
    RebuildOption,
    StreamOption,
    Task,
    TaskGraph,
    Tensor,
)
from tf_comptrain.planner.effects import PHASES, RUN, compile_graph
from tf_comptrain.planner.task_graph import CODING, scaled
from tf_comptrain.storage import LEAST_PLAIN_BYTES

# From which on TensorFlow's CPU allocator for large buffers, whose statistics these are, is asked.
LEAST_COUNTED = 256 << 10


# Seconds of a mask's gradient from a stream over those of decoding it, and passes over memory of a normalization,
# scaled and shifted, with its ReLU.
_MASK_SHARE = 0.3
_PASSES = 4


class Seconds(NamedTuple):
    """Measured seconds of whole steps.

    Attributes:
      held: Every tensor in its smallest usual form.
      kept: Every tensor as it is.
    """

    held: float
    kept: float


class _TaskNumbers(NamedTuple):
    """Where a tensor is in the tasks of a step: their numbers."""

    held: CrossingTensor
    encoded: int
    last_forward: int
    readings: tuple[int, ...]
    stream_bytes: int


def task_graph(
    name: str,
    batch: int,
    trace: Trace,
    tensors: Sequence[CrossingTensor],
    seconds: Seconds,
    here: Hardware,
    offload_share: float | None = None,
) -> TaskGraph:
    """The task graph of a step.

    Args:
      name: Of the model.
      batch: Samples of the step.
      trace: Of a step that holds every tensor in its smallest usual form.
      tensors: Of that step.
      seconds: Of steps that were measured.
      here: This machine: what its codecs and its link to where tensors may wait take.
      offload_share: Of the seconds of a copy to where tensors may wait, what the computation loses; None: they may not.
    """
    return _Feed(name, batch, trace, tensors, seconds, here, offload_share).graph()


class _Feed:
    def __init__(
        self,
        name: str,
        batch: int,
        trace: Trace,
        tensors: Sequence[CrossingTensor],
        seconds: Seconds,
        here: Hardware,
        offload_share: float | None,
    ):
        self._name, self._batch, self._trace, self._seconds = name, batch, trace, seconds
        self._here, self._offload_share = here, offload_share
        self._ran = {op.name: op for op in trace.operations}
        self._alive = _lifetimes(trace)
        self._tensors = [held for held in tensors if self._is_seen(held)]
        self._cuts = [trace.operations[0].start_s if trace.operations else 0.0]
        starts = {self._ran[op].start_s for held in self._tensors for op in _operations(held)}
        self._cuts += sorted(starts | {end for held in self._tensors for end in self._releases(held)})
        self._first_backward = self._task_at(
            min((self._ran[r.op].start_s for h in self._tensors for r in h.readings), default=np.inf)
        )
        self._places = [place for held in self._tensors if (place := self._place(held)) is not None]

    def _is_seen(self, held: CrossingTensor) -> bool:
        """Whether all of it is in the trace, and the allocator's statistics count it."""
        return held.bytes >= LEAST_COUNTED and all(op in self._ran for op in _operations(held))

    def _releases(self, held: CrossingTensor) -> Iterator[float]:
        """Just after what was restored is released: a tensor that is kept may be there for longer."""
        for reading in held.readings:
            for event, end in self._alive.get(reading.op, ()) if reading.restores else ():
                if event.requested_bytes == held.bytes and end < np.inf:
                    yield float(np.nextafter(end, np.inf))

    def _task_at(self, time_s: float) -> int:
        return max(bisect.bisect_right(self._cuts, time_s) - 1, 0)

    def _place(self, held: CrossingTensor) -> _TaskNumbers | None:
        encoder = self._ran[held.encoder]
        encoded = self._task_at(encoder.start_s)
        readings = tuple(sorted({self._task_at(self._ran[r.op].start_s) for r in held.readings}))
        if encoded >= self._first_backward:
            return None
        last = min(self._task_at(self._freed(held, encoder.start_s)), self._first_backward - 1)
        streams = [
            event.bytes
            for event, end in self._alive.get(held.encoder, ())
            if event.region == "output" and end > encoder.end_s
        ]
        return _TaskNumbers(held, encoded, max(last, encoded), readings, max(streams, default=0))

    def _freed(self, held: CrossingTensor, at_s: float) -> float:
        """When the plain values that were encoded then were released."""
        for maker in held.makers:
            for event, end in self._alive.get(maker, ()):
                if event.requested_bytes == held.bytes and event.time_s <= at_s < end:
                    return end
        return at_s

    def graph(self) -> TaskGraph:
        graph = TaskGraph(
            self._name,
            tuple(self._tasks()),
            tuple(self._tensor(place) for place in self._places),
            resting_bytes=max(self._trace.base_bytes, 0),
            batch=self._batch,
        )
        return _with_workspace(self._with_times(graph), self._levels())

    def _tasks(self) -> list[Task]:
        names = ["start", *(self._op_at(cut) for cut in self._cuts[1:])]
        return [
            Task(f"{number}: {name}", number >= self._first_backward, 0.0)
            for number, name in enumerate(names)
        ]

    def _op_at(self, cut: float) -> str:
        return next(
            held.name
            for held in self._tensors
            if cut in self._releases(held) or any(self._ran[op].start_s == cut for op in _operations(held))
        )

    def _tensor(self, place: _TaskNumbers) -> Tensor:
        held, names = place.held, [task.name for task in self._tasks()]
        readers = (*((place.last_forward,) if place.last_forward > place.encoded else ()), *place.readings)
        restored = {self._task_at(self._ran[r.op].start_s) for r in held.readings if r.restores}
        masks = {self._task_at(self._ran[r.op].start_s) for r in held.readings if r.is_mask}
        direct = tuple(names[number] for number in place.readings if number not in restored)
        beside = tuple(names[n] for n in place.readings if n not in restored and n not in masks)
        return Tensor(
            held.name,
            held.bytes + self._reserve(held),
            names[place.encoded],
            tuple(dict.fromkeys(names[number] for number in readers)),
            tuple(self._options(place, direct, bool(masks))),
            beside_bytes=held.bytes if beside else 0,
            beside=beside,
        )

    def _options(
        self, place: _TaskNumbers, direct: tuple[str, ...], has_mask: bool
    ) -> Iterator[StreamOption | RebuildOption | OffloadOption]:
        held, here = place.held, self._here
        if held.codec == BITS:
            pass_s = held.bytes / here.bytes_per_s
            yield StreamOption(BITS, place.stream_bytes, pass_s, pass_s, 0, is_source=False)
            return
        codec = here.codecs.get(held.codec, here.codecs["plane"])
        decode_s = held.bytes / codec.decode_bytes_per_s
        shares = [_MASK_SHARE if reading.is_mask else 1.0 for reading in held.readings]
        each_s = decode_s * sum(shares) / len(place.readings)
        encode_s = held.bytes / codec.encode_bytes_per_s
        size = place.stream_bytes
        yield StreamOption(held.codec, size, encode_s, each_s, direct=direct)
        if self._offload_share is not None and held.bytes >= LEAST_PLAIN_BYTES:
            copy_s = here.host_link.seconds(size)
            lost_s = self._offload_share * copy_s
            coding = encode_s + lost_s, each_s + lost_s / len(place.readings)
            yield OffloadOption(copy_s, copy_s, size, *coding, direct)
        known = {other.held.name for other in self._places} - {held.name}
        if held.rebuilding is not None and known.issuperset(held.rebuilding.sources):
            bits = math.ceil(held.elements / 8) if has_mask else 0
            seconds = _PASSES * 2 * held.bytes / here.bytes_per_s
            bits = bits if bits >= LEAST_COUNTED else 0
            yield RebuildOption(held.rebuilding.sources, seconds, held_bytes=bits, direct=direct)

    def _reserve(self, held: CrossingTensor) -> int:
        """What a fused normalization holds for its own gradient, where its input is kept."""
        return sum(
            event.requested_bytes
            for op in held.normalizations
            for event, _ in self._alive.get(op, ())
            if event.region == "output" and event.requested_bytes < held.bytes
        )

    def _spent(self, op: str) -> float:
        return self._ran[op].end_s - self._ran[op].start_s

    def _with_times(self, graph: TaskGraph) -> TaskGraph:
        """Durations in proportion to the trace, with the sums that were measured."""
        end = max((op.end_s for op in self._trace.operations), default=0.0)
        edges = [*self._cuts, max(end, self._cuts[-1])]
        spans = np.diff(edges)
        for held in self._tensors:
            for op in _operations(held):
                spans[self._task_at(self._ran[op].start_s)] -= self._spent(op)
        spans = np.maximum(spans, 0.0)
        held_s, plain_s = self._seconds
        spans *= plain_s / max(spans.sum(), 1e-12)
        tasks = tuple(task._replace(duration_s=float(s)) for task, s in zip(graph.tasks, spans))
        codec_s = sum(_stream_s(tensor) for tensor in graph.tensors)
        # Two measurements of a busy machine may differ by more than the codecs take.
        factor = min(max((held_s - plain_s) / max(codec_s, 1e-12), 0.5), 2.0)
        tensors = tuple(
            tensor._replace(options=tuple(scaled(option, factor, CODING) for option in tensor.options))
            for tensor in graph.tensors
        )
        return graph._replace(tasks=tasks, tensors=tensors)

    def _levels(self) -> np.ndarray:
        """The highest level over the resting one during each task."""
        levels = np.zeros(len(self._cuts))
        current = 0
        events = self._trace.events
        position = 0
        for number in range(len(self._cuts)):
            end = self._cuts[number + 1] if number + 1 < len(self._cuts) else np.inf
            levels[number] = current
            while position < len(events) and events[position].time_s < end:
                current = events[position].level_bytes - self._trace.base_bytes
                levels[number] = max(levels[number], current)
                position += 1
        return levels


def _operations(held: CrossingTensor) -> tuple[str, ...]:
    return (held.encoder, *(reading.op for reading in held.readings))


def _lifetimes(trace: Trace) -> Mapping[str, list[tuple[AllocationEvent, float]]]:
    """By operation: the buffers that it asked for, each with the time of its release."""
    found: dict[str, list[tuple[AllocationEvent, float]]] = {}
    releases = trace.releases()
    for number, event in enumerate(trace.events):
        if event.bytes > 0:
            end_s = trace.events[releases[number]].time_s if number in releases else np.inf
            found.setdefault(event.op, []).append((event, end_s))
    return found


def _stream_s(tensor: Tensor) -> float:
    stream: Any = tensor.options[0]
    return stream.encode_s + stream.decode_s * len(tensor.readers)


def _with_workspace(graph: TaskGraph, levels: np.ndarray) -> TaskGraph:
    """The graph with what was alive besides the streams, as each task's workspace."""
    state = PlanState(compile_graph(graph))
    for choices in state.effects.of_tensor:
        state.set(
            next((c for c in choices if state.effects.choices[c].label.startswith("stream")), choices[0])
        )
    live = state.live[RUN::PHASES]
    tasks = tuple(
        task._replace(workspace_bytes=int(max(level - modelled, 0)))
        for task, level, modelled in zip(graph.tasks, levels, live)
    )
    return graph._replace(tasks=tasks)
