"""Memory and time of a step under a plan: bytes phase by phase, computation and copies side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tf_comptrain.planner.effects import PHASES, STORE, Effects, SourceRead
from tf_comptrain.planner.timeline import Jobs, StepSchedule, latest_starts, run_jobs

COMPUTE = "compute"
_OUT, _IN = range(2)
_QUEUES = ("copy out", "copy in")


class Waste(NamedTuple):
    """What the allocator takes beyond what is live: peak = resting + factor * live + bytes.

    Attributes:
      factor: At least 1.
      bytes: At least 0.
    """

    factor: float = 1.0
    bytes: int = 0


NO_WASTE = Waste()


class QueueEvent(NamedTuple):
    """Something that a queue did.

    Attributes:
      queue: "compute", "copy out" or "copy in".
      name: Of the task or tensor.
      kind: "task", "encode", "decode", "rebuild", "segment" or "copy".
      start_s, end_s: Since the step began.
    """

    queue: str
    name: str
    kind: str
    start_s: float
    end_s: float


class Simulation(NamedTuple):
    """A step.

    Attributes:
      step_s: Seconds from its beginning until all queues are done.
      peak_bytes: Resting bytes and the allocator's waste included.
      time_s: When each phase begins.
      memory_bytes: During each phase; resting bytes and waste included.
      events: What the queues did, in the order of time.
    """

    step_s: float
    peak_bytes: int
    time_s: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    events: tuple[QueueEvent, ...]


class CopiedSpans(NamedTuple):
    """Tensors that are held because a link is not done; arrays of one length.

    Attributes:
      tensor: Its number.
      start, end: First phase, and the phase after the last.
    """

    tensor: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]


class PlanState:
    """A plan that can be changed choice by choice, with its memory and time kept up to date.

    Every tensor is kept in the beginning.

    Args:
      effects: The compiled graph.
      waste: Of the allocator.

    Attributes:
      chosen: Number of each tensor's choice.
      live: Bytes that are live in each phase, without resting bytes and waste; copies apart.
      unserved: Reads of tensors that are not held; a plan that has any cannot run.
    """

    def __init__(self, effects: Effects, waste: Waste = NO_WASTE):
        self.effects = effects
        self.waste = waste
        self.chosen = list(range(len(effects.of_tensor)))
        self.live = effects.fixed.copy()
        self.unserved = 0
        self._added = np.zeros(effects.phases)
        self._plain_s = float(effects.durations.sum())
        self._added_s = 0.0
        self._reads: list[dict[SourceRead, int]] = [{} for _ in self.chosen]
        self._copied: set[int] = set()
        for number in self.chosen:
            self._put(number, 1)

    def set(self, choice: int) -> list[int]:
        """Makes a choice; segments that a tensor of it belonged to are dissolved, their other tensors kept.

        Returns:
          The choices that undo it, to be set in their order.
        """
        new = self.effects.choices[choice]
        before = list(dict.fromkeys(self.chosen[number] for number in new.tensors))
        if before == [choice]:
            return []
        freed = [number for old in before for number in self.effects.choices[old].tensors]
        touched = {read.tensor for place in (*before, choice) for read in self.effects.choices[place].reads}
        touched.update(freed, new.tensors)
        left = [number for number in freed if number not in new.tensors]
        for number in touched:
            self._serve(number, -1)
        for old in before:
            self._put(old, -1)
        for number in left:
            self.chosen[number] = number
        for number in new.tensors:
            self.chosen[number] = choice
        for place in (choice, *left):
            self._put(place, 1)
        for number in touched:
            self._serve(number, 1)
        if len(new.tensors) == 1:
            return before
        return [*new.tensors, *before]

    def set_all(self, choices: Iterable[int]) -> None:
        """Makes the choices of a whole plan, as `chosen` has them."""
        for choice in dict.fromkeys(choices):
            self.set(choice)

    def restore(self, chosen: Sequence[int]) -> None:
        """Goes back to an earlier plan."""
        different = [number for number, choice in enumerate(chosen) if self.chosen[number] != choice]
        for number in different:
            self.set(number)
        self.set_all(chosen[number] for number in different)

    def measure(self) -> tuple[float, float]:
        """(seconds of the step, bytes of its peak)."""
        if not self._copied:
            return self._plain_s + self._added_s, self.with_waste(float(self.live.max()))
        timeline = self.timeline()
        return timeline.end_s, self.with_waste(float(self._live(timeline).max()))

    def may_fit(self, limit_bytes: float) -> bool:
        """Whether the peak is within a limit, copies apart: quick to say, and no without them is no with them."""
        return float(self.live.max()) <= self.limit_of_live(limit_bytes)

    def limit_of_live(self, limit_bytes: float) -> float:
        """The bytes that may be live where the peak may be `limit_bytes`."""
        resting = self.effects.graph.resting_bytes
        return (limit_bytes - resting - self.waste.bytes) / self.waste.factor

    def levels(self) -> tuple[NDArray[np.float64], CopiedSpans | None]:
        """(live bytes in each phase, those of them that are there because a link is not done)."""
        if not self._copied:
            return self.live, None
        timeline = self.timeline()
        return self._live(timeline), self.copied_spans(timeline)

    def simulate(self) -> Simulation:
        """The whole step, for tables and pictures."""
        timeline = self.timeline()
        memory = self.with_waste(self._live(timeline))
        events = sorted((*self._computation(timeline), *self._beside(timeline)), key=lambda e: e.start_s)
        peak = int(np.ceil(memory.max()))
        return Simulation(timeline.end_s, peak, timeline.start_s, memory, tuple(events))

    def with_waste(self, live: Any) -> Any:
        """The peak of so many live bytes: the inverse of `limit_of_live`."""
        return self.effects.graph.resting_bytes + self.waste.factor * live + self.waste.bytes

    def _put(self, place: int, sign: int) -> None:
        """Adds a choice, or takes it away; what serves further reads apart."""
        choice = self.effects.choices[place]
        self._apply(choice.spans, choice.seconds, sign)
        if choice.copies is not None:
            (self._copied.add if sign > 0 else self._copied.discard)(choice.tensors[0])
        for read in choice.reads:
            count = self._reads[read.tensor].get(read, 0) + sign
            if count:
                self._reads[read.tensor][read] = count
            else:
                del self._reads[read.tensor][read]

    def _serve(self, number: int, sign: int) -> None:
        reads = self._reads[number]
        if not reads:
            return
        choice = self.effects.choices[self.chosen[number]]
        if not choice.is_source:
            self.unserved += sign * len(reads)
            return
        reach = 0
        for read in reads:
            serving = choice.servings[read]
            self._apply(serving.spans, serving.seconds, sign)
            reach = max(reach, serving.reach)
        if reach:
            self._apply(((choice.end, reach, choice.held_bytes),), (), sign)

    def _apply(self, spans: Iterable, seconds: Iterable, sign: int) -> None:
        for start, end, size in spans:
            self.live[start:end] += sign * size
        for phase, duration in seconds:
            self._added[phase] += sign * duration
            self._added_s += sign * duration

    def timeline(self) -> StepSchedule:
        """When everything runs."""
        work = self.effects.durations + np.maximum(self._added, 0.0)
        nominal = np.concatenate(([0.0], np.cumsum(work)))
        return run_jobs(nominal, self._jobs(nominal))

    def copied_spans(self, timeline: StepSchedule) -> CopiedSpans:
        """What is held because a link is not done."""
        jobs, table, starts = timeline.jobs, self.effects.copies, timeline.start_s[:-1]
        begun = np.searchsorted(starts, timeline.begin_s, "right") - 1
        ended = np.searchsorted(starts, timeline.finish_s)
        out, back = jobs.owner[jobs.queue == _OUT], jobs.owner[jobs.queue == _IN]
        start = (
            table.raw_end[out],
            begun[jobs.queue == _IN],
        )  # until it is copied; from when its copy begins
        end = (ended[jobs.queue == _OUT], table.restored[back])
        found = CopiedSpans(*map(np.concatenate, ((out, back), start, end)))
        valid = found.start < found.end
        return CopiedSpans(found.tensor[valid], found.start[valid], found.end[valid])

    def _jobs(self, nominal_s: NDArray[np.float64]) -> Jobs:
        """Copies out as soon as a tensor is made; copies in as late as they may begin."""
        table = self.effects.copies
        copied = np.fromiter(self._copied, int, len(self._copied))
        copied = copied[np.lexsort((copied, table.made[copied]))]
        places = np.arange(len(copied))
        wait = table.restored[copied]
        for place, number in enumerate(copied.tolist()):
            if self._reads[number]:
                wait[place] = min(wait[place], min(read.start for read in self._reads[number]))
        order = np.lexsort((copied, wait))
        back, wait = copied[order], wait[order]
        ready = np.maximum(latest_starts(nominal_s, wait, table.in_s[back]), table.made[back])
        never = np.full(len(copied), self.effects.phases + 1)
        return Jobs(
            np.repeat((_OUT, _IN), len(copied)),
            np.concatenate((copied, back)),
            np.concatenate((table.made[copied], ready)),
            np.concatenate((never, wait)),
            np.concatenate((table.out_s[copied], table.in_s[back])),
            np.concatenate((np.full(len(places), -1), places[order])),
        )

    def _live(self, timeline: StepSchedule) -> NDArray[np.float64]:
        """Live bytes in each phase."""
        spans = self.copied_spans(timeline)
        sizes, phases = self.effects.copies.size[spans.tensor], self.effects.phases + 1
        steps = np.bincount(spans.start, sizes, phases) - np.bincount(spans.end, sizes, phases)
        return self.live + np.cumsum(steps)[:-1]

    def _computation(self, timeline: StepSchedule) -> list[QueueEvent]:
        """Tasks, and what choices add before and after them."""
        graph, starts = self.effects.graph, timeline.start_s.tolist()
        durations = self.effects.durations
        events = [
            QueueEvent(
                COMPUTE, graph.tasks[phase // PHASES].name, "task", starts[phase], starts[phase] + seconds
            )
            for phase, seconds in enumerate(durations.tolist())
            if seconds
        ]
        clock = starts[:-1]
        for name, kind, phase, seconds in self._pieces():
            events.append(QueueEvent(COMPUTE, name, kind, clock[phase], clock[phase] + seconds))
            clock[phase] += seconds
        return events

    def _pieces(self) -> list[tuple[str, str, int, float]]:
        """(tensor, kind, phase, seconds) of the work that choices add."""
        choices, tensors = self.effects.choices, self.effects.graph.tensors
        pieces = []
        for place in dict.fromkeys(self.chosen):
            choice = choices[place]
            kind = choice.label.partition(":")[0]
            for phase, seconds in choice.seconds:
                is_coded = kind in ("stream", "offload")
                step = kind if not is_coded else "encode" if phase % PHASES == STORE else "decode"
                pieces.append((tensors[choice.tensors[0]].name, step, phase, seconds))
        for number, reads in enumerate(self._reads):
            choice = choices[self.chosen[number]]
            for read in reads if choice.is_source else ():
                pieces += [(tensors[number].name, "decode", *item) for item in choice.servings[read].seconds]
        return [piece for piece in pieces if piece[-1]]

    def _beside(self, timeline: StepSchedule) -> list[QueueEvent]:
        tensors, jobs = self.effects.graph.tensors, timeline.jobs
        columns = (jobs.queue, jobs.owner, timeline.begin_s, timeline.finish_s)
        return [
            QueueEvent(_QUEUES[queue], tensors[owner].name, "copy", start, end)
            for queue, owner, start, end in zip(*(column.tolist() for column in columns))
        ]
