"""What each choice does to a step: the seconds it adds, and the bytes it holds, phase by phase.

A task has three phases: PREPARE, in which what it reads is restored, RUN, and STORE, in which what it made is encoded.
Phases of all tasks in their order are the time axis of the memory curve. A choice holds bytes over spans of phases, so
that the memory of a plan is a sum, and the same numbers serve the simulator, the search and the mixed-integer program.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tf_comptrain.planner.task_graph import (
    KEEP,
    OffloadOption,
    RebuildOption,
    Segment,
    StreamOption,
    TaskGraph,
    Tensor,
    check_graph,
)

PREPARE, RUN, STORE, PHASES = 0, 1, 2, 3

Span = tuple[int, int, float]  # first phase, phase after the last, bytes


class SourceRead(NamedTuple):
    """A further read of a held tensor, by something that is rebuilt from it.

    Attributes:
      tensor: Number of the tensor.
      start, end: First phase in which it has to be there, and the phase after the last.
    """

    tensor: int
    start: int
    end: int


class Serving(NamedTuple):
    """What it takes a choice to serve a further read.

    Attributes:
      seconds: (phase, seconds) of each piece of work on the compute queue.
      spans: Bytes held for this read alone.
      reach: Phase up to which the tensor has to be held for it; 0 where that changes nothing.
    """

    seconds: tuple[tuple[int, float], ...] = ()
    spans: tuple[Span, ...] = ()
    reach: int = 0


class Copies(NamedTuple):
    """What a choice moves out and back.

    Attributes:
      size: Bytes.
      begin: Phase from which it is there; it can be copied out from the next one on.
      gone: Phase from which it is away, if the copy is done.
      back: Phase that needs it back.
      out_s, in_s: Seconds of the copies.
    """

    size: float
    begin: int
    gone: int
    back: int
    out_s: float
    in_s: float


class Effect(NamedTuple):
    """One choice.

    Attributes:
      label: "keep", "stream:plane", "rebuild:a,b", "offload" or "segment:block1".
      tensors: Numbers of the tensors that it decides.
      seconds: (phase, seconds) of each piece of work on the compute queue.
      spans: Bytes held.
      reads: Of tensors that have to be held for it.
      held_bytes: On the device between the forward and the backward pass.
      is_source: Whether others may be rebuilt from the tensor.
      end: Phase after the last in which the tensor is held for its own readers.
      servings: What further reads of the tensor take, by read.
      copies: None where nothing is moved.
    """

    label: str
    tensors: tuple[int, ...]
    seconds: tuple[tuple[int, float], ...]
    spans: tuple[Span, ...]
    reads: tuple[SourceRead, ...] = ()
    held_bytes: float = 0.0
    is_source: bool = False
    end: int = 0
    servings: dict[SourceRead, Serving] = {}
    copies: Copies | None = None

    @property
    def total_s(self) -> float:
        return sum(seconds for _, seconds in self.seconds)


class CopyWindows(NamedTuple):
    """Where copies of tensors fit in; arrays [tensors], meaningful where the tensor may be copied.

    Attributes:
      size: Bytes that are moved; of tensors that may not be, their own.
      made: Phase whose beginning makes it ready to be copied out.
      raw_end: Phase after its last forward reader.
      restored: Phase that needs it back.
      kept_end: Phase after its last reader.
      out_s, in_s: Seconds of the copies.
    """

    size: NDArray[np.float64]
    made: NDArray[np.int64]
    raw_end: NDArray[np.int64]
    restored: NDArray[np.int64]
    kept_end: NDArray[np.int64]
    out_s: NDArray[np.float64]
    in_s: NDArray[np.float64]


class Effects(NamedTuple):
    """A task graph, compiled.

    Attributes:
      graph: As given.
      phases: How many there are.
      choices: All of them. The first ones keep one tensor each, in the order of the tensors.
      of_tensor: Numbers of the choices that decide a tensor, by tensor.
      fixed: Workspace bytes of each task's RUN phase, by phase.
      durations: Seconds of each task on the compute queue, by phase.
      copies: Where copies of tensors fit in.
    """

    graph: TaskGraph
    phases: int
    choices: list[Effect]
    of_tensor: list[list[int]]
    fixed: NDArray[np.float64]
    durations: NDArray[np.float64]
    copies: CopyWindows


class _Life(NamedTuple):
    """Where a tensor is made and read, as tasks."""

    producer: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]

    @property
    def last_forward(self) -> int:
        return max(self.forward, default=self.producer)

    @property
    def last(self) -> int:
        return max((self.producer, *self.forward, *self.backward))


def compile_graph(graph: TaskGraph) -> Effects:
    """The choices of a task graph as effects.

    Raises:
      ValueError: The graph is not sound; see `check_graph`.
    """
    check_graph(graph)
    places = {task.name: place for place, task in enumerate(graph.tasks)}
    numbers = {tensor.name: number for number, tensor in enumerate(graph.tensors)}
    lives = [_life(tensor, graph, places) for tensor in graph.tensors]
    choices = [
        _keep(number, tensor, life, places) for number, (tensor, life) in enumerate(zip(graph.tensors, lives))
    ]
    sources = _sources(graph)
    for number, (tensor, life) in enumerate(zip(graph.tensors, lives)):
        if life.backward or tensor.name in sources:
            offered = [o for o in tensor.options if life.backward or isinstance(o, StreamOption)]
            choices += [_of_option(number, tensor, life, option, numbers, places) for option in offered]
    choices += [_of_segment(segment, graph, lives, numbers, places) for segment in graph.segments]
    of_tensor: list[list[int]] = [[] for _ in graph.tensors]
    for place, choice in enumerate(choices):
        for number in choice.tensors:
            of_tensor[number].append(place)
    _serve_reads(choices, of_tensor, graph, lives)
    fixed = np.zeros(PHASES * len(graph.tasks))
    durations = np.zeros(len(fixed))
    for place, task in enumerate(graph.tasks):
        fixed[PHASES * place + RUN] = task.workspace_bytes
        durations[PHASES * place + RUN] = task.duration_s
    return Effects(graph, len(fixed), choices, of_tensor, fixed, durations, _copies(choices, graph))


def _copies(choices: list[Effect], graph: TaskGraph) -> CopyWindows:
    count = len(graph.tensors)
    table = np.zeros((count, 7))
    for number, choice in enumerate(choices[:count]):
        table[number, 0], table[number, 4] = graph.tensors[number].bytes, choice.end
    for choice in choices:
        if choice.copies is not None:
            size, begin, gone, back, out_s, in_s = choice.copies
            table[choice.tensors[0], [0, 1, 2, 3, 5, 6]] = (size, begin + 1, gone, back, out_s, in_s)
    size, made, raw_end, restored_at, kept_end, out_s, in_s = table.T
    made, raw_end, restored_at, kept_end = (c.astype(int) for c in (made, raw_end, restored_at, kept_end))
    return CopyWindows(size, made, raw_end, restored_at, kept_end, out_s, in_s)


def _sources(graph: TaskGraph) -> set[str]:
    """Names of the tensors that others may be rebuilt from."""
    options = (option for tensor in graph.tensors for option in tensor.options)
    rebuilt = {name for option in options if isinstance(option, RebuildOption) for name in option.sources}
    return rebuilt.union(*(segment.sources for segment in graph.segments))


def _life(tensor: Tensor, graph: TaskGraph, places: dict[str, int]) -> _Life:
    readers = sorted({places[name] for name in tensor.readers})
    producer = places[tensor.producer]
    if graph.tasks[producer].backward:  # a gradient crosses nothing
        return _Life(producer, tuple(readers), ())
    forward = tuple(place for place in readers if not graph.tasks[place].backward)
    return _Life(producer, forward, tuple(place for place in readers if graph.tasks[place].backward))


def _plain_span(size: float, life: _Life) -> Span:
    """The tensor from its producer to its last forward reader."""
    return PHASES * life.producer + RUN, PHASES * life.last_forward + STORE, size


def _keep(number: int, tensor: Tensor, life: _Life, places: dict[str, int]) -> Effect:
    end = PHASES * life.last + STORE
    spans = [(PHASES * life.producer + RUN, end, float(tensor.bytes))]
    for name in tensor.beside:
        run = PHASES * places[name] + RUN
        spans.append((run, run + 1, float(tensor.beside_bytes)))
    return Effect(KEEP, (number,), (), tuple(spans), (), float(tensor.bytes), True, end, {})


def _of_option(
    number: int,
    tensor: Tensor,
    life: _Life,
    option: StreamOption | RebuildOption | OffloadOption,
    numbers: dict[str, int],
    places: dict[str, int],
) -> Effect:
    direct = {places[name] for name in getattr(option, "direct", ())}
    restoring = tuple(place for place in life.backward if place not in direct)
    if isinstance(option, StreamOption):
        return _stream(number, tensor, life, option, restoring)
    if isinstance(option, RebuildOption):
        return _rebuild(number, tensor, life, option, numbers, restoring)
    return _offload(number, tensor, life, option, restoring)


def _stream(
    number: int, tensor: Tensor, life: _Life, option: StreamOption, restoring: tuple[int, ...]
) -> Effect:
    stored = PHASES * life.producer + STORE
    start, plain_end, _ = _plain_span(tensor.bytes, life)
    end = PHASES * life.last + STORE
    restored = tensor.bytes if option.restored_bytes is None else option.restored_bytes
    spans = [
        (start, max(plain_end, stored + 1), float(tensor.bytes)),
        (stored, max(end, stored + 1), float(option.bytes)),
    ]
    spans += [(PHASES * place, PHASES * place + STORE, float(restored)) for place in restoring]
    seconds = [
        (stored, option.encode_s),
        *((PHASES * place + PREPARE, option.decode_s) for place in life.backward),
    ]
    held, is_source = float(option.bytes), option.is_source
    return Effect(option.label, (number,), tuple(seconds), tuple(spans), (), held, is_source, end, {})


def _offload(
    number: int, tensor: Tensor, life: _Life, option: OffloadOption, restoring: tuple[int, ...]
) -> Effect:
    raw, back, end = _plain_span(tensor.bytes, life), PHASES * min(life.backward), PHASES * life.last + STORE
    if option.bytes is None:
        moved = Copies(float(tensor.bytes), raw[0], raw[1], back, option.out_s, option.in_s)
        there = (back, end, float(tensor.bytes))
        return Effect(option.label, (number,), (), (raw, there), (), 0.0, True, end, {}, moved)
    size = float(option.bytes)
    stream = StreamOption("", option.bytes, option.encode_s, option.decode_s)
    held = _stream(number, tensor, life, stream, restoring)
    stored = PHASES * life.producer + STORE
    around = [(stored, stored + 1, size), (back, end, size)]
    spans = (held.spans[0], *around, *held.spans[2:])
    moved = Copies(size, stored, stored + 1, back, option.out_s, option.in_s)
    return held._replace(label=option.label, spans=spans, held_bytes=0.0, copies=moved)


def _rebuild(
    number: int,
    tensor: Tensor,
    life: _Life,
    option: RebuildOption,
    numbers: dict[str, int],
    restoring: tuple[int, ...],
) -> Effect:
    spans = [_plain_span(tensor.bytes, life)]
    if option.held_bytes:
        spans.append((PHASES * life.producer + STORE, PHASES * life.last + STORE, float(option.held_bytes)))
    for place in restoring:
        start = PHASES * place
        spans += [
            (start, start + STORE, float(tensor.bytes)),
            (start, start + 1, float(option.working_bytes)),
        ]
    seconds = tuple((PHASES * place, option.seconds) for place in restoring)
    reads = tuple(
        SourceRead(numbers[source], PHASES * place, PHASES * place + 1)
        for source in dict.fromkeys(option.sources)
        for place in restoring
    )
    return Effect(option.label, (number,), seconds, tuple(spans), reads, float(option.held_bytes))


def _of_segment(
    segment: Segment, graph: TaskGraph, lives: list[_Life], numbers: dict[str, int], places: dict[str, int]
) -> Effect:
    inside = [numbers[name] for name in dict.fromkeys(segment.tensors)]
    start = PHASES * min(place for number in inside for place in lives[number].backward)
    spans: list[Span] = [(start, start + 1, float(segment.working_bytes))]
    for number in inside:
        life, size = lives[number], graph.tensors[number].bytes / segment.slices
        spans.append(_plain_span(size, life))
        if life.backward:
            spans.append((start, PHASES * max(life.backward) + STORE, size))
    end = start + 1
    if segment.slices > 1:
        within = sorted(places[name] for name in segment.tasks)
        spans += _of_slices(segment, graph, lives, within, set(inside))
        end = PHASES * within[-1] + STORE
    reads = tuple(SourceRead(numbers[source], start, end) for source in dict.fromkeys(segment.sources))
    return Effect(segment.label, tuple(inside), ((start, segment.seconds),), tuple(spans), reads)


def _of_slices(
    segment: Segment, graph: TaskGraph, lives: list[_Life], within: list[int], inside: set[int]
) -> list[Span]:
    """Less workspace; but what enters and what leaves the block is there for all of the slices."""
    spans: list[Span] = []
    for place in within:
        saved = graph.tasks[place].workspace_bytes * (1 - 1 / segment.slices)
        spans.append((PHASES * place + RUN, PHASES * place + STORE, -saved))
    passes = [[place for place in within if graph.tasks[place].backward is late] for late in (False, True)]
    for tasks in filter(None, passes):
        first, last = PHASES * tasks[0] + RUN, PHASES * tasks[-1] + STORE
        for number, tensor in enumerate(graph.tensors):
            if number in inside or tensor.name in segment.sources:
                continue
            life = lives[number]
            if life.producer in tasks:
                spans.append((first, PHASES * life.producer + RUN, float(tensor.bytes)))
            elif life.last in tasks and life.producer < tasks[0] and not tensor.options:
                spans.append((PHASES * life.last + STORE, last, float(tensor.bytes)))
    return [span for span in spans if span[0] < span[1]]


def _serve_reads(
    choices: list[Effect], of_tensor: list[list[int]], graph: TaskGraph, lives: list[_Life]
) -> None:
    """Gives each choice what it takes to serve the further reads of its tensor."""
    for read in sorted({read for choice in choices for read in choice.reads}):
        for place in of_tensor[read.tensor]:
            choice = choices[place]
            if not choice.is_source:
                continue
            tensor, life = graph.tensors[read.tensor], lives[read.tensor]
            choice.servings[read] = _serving(choice, tensor, life, read, graph)


def _serving(choice: Effect, tensor: Tensor, life: _Life, read: SourceRead, graph: TaskGraph) -> Serving:
    reach = read.end if read.end > choice.end else 0
    # An earlier read brings a copy back earlier, which is the simulator's to know.
    option = next((o for o in tensor.options if o.label == choice.label), None)
    if option is None or isinstance(option, OffloadOption) and option.bytes is None:
        return Serving(reach=reach)  # it is there as it is
    assert isinstance(option, (StreamOption, OffloadOption))
    place = read.start // PHASES
    own = (
        place in life.backward
        and getattr(option, "restored_bytes", None) is None
        and graph.tasks[place].name not in option.direct
    )
    if own and read.end <= read.start + STORE:
        return Serving(reach=reach)  # it is decoded for its own reader then
    return Serving(((read.start, option.decode_s),), ((read.start, read.end, float(tensor.bytes)),), reach)
