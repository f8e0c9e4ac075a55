"""A pipeline's step: when each stage does what (1F1B order), and the bytes on its devices.

Stage s of S runs min(m, S - s) forward passes before its first backward pass, and from then on one of each in turn, so
that it holds the activations of so many microbatches at most.

Reference:
  Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training (SOSP 2019), for the order.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tf_comptrain.planner.simulator import QueueEvent

Floats = NDArray[np.float64]


class StageRun(NamedTuple):
    """What each device of a stage does in a step; arrays over its layers, for one microbatch.

    Attributes:
      forward_s, backward_s: Seconds of each layer.
      sync_s: Seconds of summing its gradients over the devices, on the link.
      held_bytes: What it holds from its forward to its backward pass.
      resting_bytes: What is there all the time.
      finish_s: Seconds after the last sum: the latency of the sums, and the optimizer.
    """

    forward_s: Floats
    backward_s: Floats
    sync_s: Floats
    held_bytes: Floats
    resting_bytes: float
    finish_s: float

    @property
    def microbatch_s(self) -> float:
        return float(self.forward_s.sum() + self.backward_s.sum())

    def after_s(self) -> float:
        """Seconds from the stage's last backward pass until its weights are updated.

        A layer's gradients are summed up when its backward pass is done, one layer's after another's:
        max over l of sum(sync of layers up to l) - sum(backward of layers before l).
        """
        if not self.sync_s.any():
            return self.finish_s
        done = np.cumsum(self.sync_s) - np.cumsum(self.backward_s) + self.backward_s
        return max(float(done.max()), 0.0) + self.finish_s


class Border(NamedTuple):
    """Between a stage and the next: seconds of sending one microbatch.

    Attributes:
      forward_s: Its activations.
      backward_s: Their gradients.
    """

    forward_s: float
    backward_s: float


class DeviceSimulation(NamedTuple):
    """A step on several devices.

    Attributes:
      step_s: Seconds until the last weights are updated.
      peak_bytes: Of a device of each stage.
      events: What the stages and links did, in the order of time; queues are "stage 0", "link 0-1", "sync 0".
    """

    step_s: float
    peak_bytes: tuple[float, ...]
    events: tuple[QueueEvent, ...]


def order(stage: int, stages: int, microbatches: int) -> list[tuple[bool, int]]:
    """The stage's passes in 1F1B order: (whether backward, number of the microbatch)."""
    ahead = min(microbatches, stages - stage)
    passes = [(False, k) for k in range(ahead)]
    for k in range(microbatches):
        passes.append((True, k))
        if k + ahead < microbatches:
            passes.append((False, k + ahead))
    return passes


def step_s(
    forward: list[float], backward: list[float], after: list[float], borders: list[Border], microbatches: int
) -> float:
    """Seconds of a step, by following each stage's order once: the search's measure of a strategy.

    Args:
      forward, backward: Seconds of each stage's passes over a microbatch.
      after: Seconds from each stage's last backward pass to its updated weights.
      borders: One fewer than stages.
      microbatches: Of a step.
    """
    count = len(forward)
    if count == 1:
        return microbatches * (forward[0] + backward[0]) + after[0]
    orders = [order(stage, count, microbatches) for stage in range(count)]
    place, clock = [0] * count, [0.0] * count
    came: list[dict[tuple[bool, int], float]] = [{} for _ in range(count)]
    for k in range(microbatches):
        came[0][False, k] = came[-1][True, k] = 0.0
    sent = {(stage, way): 0.0 for stage in range(count) for way in (False, True)}
    waiting = list(range(count))
    while waiting:
        stage = waiting.pop()
        todo, has = orders[stage], came[stage]
        while place[stage] < len(todo) and todo[place[stage]] in has:
            way, k = todo[place[stage]]
            place[stage] += 1
            begin = max(clock[stage], has.pop((way, k)))
            clock[stage] = end = begin + (backward[stage] if way else forward[stage])
            other = stage - 1 if way else stage + 1
            if 0 <= other < count:
                takes = borders[other].backward_s if way else borders[stage].forward_s
                sent[stage, way] = max(sent[stage, way], end) + takes
                came[other][way, k] = sent[stage, way]
                waiting.append(other)
    return max(end + last for end, last in zip(clock, after))


def simulate(runs: list[StageRun], borders: list[Border], microbatches: int) -> DeviceSimulation:
    """Runs a step event by event, layer by layer: devices, links each way, sums of gradients, and bytes.

    Args:
      runs: Of each stage.
      borders: One fewer than stages.
      microbatches: Of a step.
    """
    return _Simulator(runs, borders, microbatches).run()


class _Simulator:
    """A heap of things that end; each starts what waited for it."""

    def __init__(self, runs: list[StageRun], borders: list[Border], microbatches: int):
        count = len(runs)
        self._runs, self._borders, self._count = runs, borders, count
        self._last = microbatches - 1
        self._orders = [order(stage, count, microbatches) for stage in range(count)]
        self._place, self._running = [0] * count, [False] * count
        ready: list[tuple[bool, int]] = [(False, k) for k in range(microbatches)]
        self._ready = [set(ready) if stage == 0 else set() for stage in range(count)]
        self._live = [run.resting_bytes for run in runs]
        self._peak = list(self._live)
        self._sends: dict[tuple[int, bool], list[int]] = {}
        self._sums: list[list[int]] = [[] for _ in runs]
        self._heap: list[tuple[float, int, str, tuple]] = []
        self._number = 0
        self._events: list[QueueEvent] = []
        self._end = 0.0

    def run(self) -> DeviceSimulation:
        for stage in range(self._count):
            self._next_pass(stage, 0.0)
        while self._heap:
            now, _, what, about = heapq.heappop(self._heap)
            self._end = max(self._end, now)
            getattr(self, f"_{what}_done")(now, *about)
        events = tuple(sorted(self._events, key=lambda event: event.start_s))
        return DeviceSimulation(self._end, tuple(self._peak), events)

    def _later(self, now: float, seconds: float, what: str, *about: object) -> None:
        self._number += 1
        heapq.heappush(self._heap, (now + seconds, self._number, what, about))

    def _next_pass(self, stage: int, now: float) -> None:
        place, todo = self._place[stage], self._orders[stage]
        if self._running[stage] or place == len(todo) or todo[place] not in self._ready[stage]:
            return
        self._running[stage] = True
        backward, number = todo[place]
        layers = len(self._runs[stage].forward_s)
        self._start_layer(stage, backward, number, layers - 1 if backward else 0, now)
        seconds = (self._runs[stage].backward_s if backward else self._runs[stage].forward_s).sum()
        kind = "backward" if backward else "forward"
        self._events.append(QueueEvent(f"stage {stage}", str(number), kind, now, now + float(seconds)))

    def _start_layer(self, stage: int, backward: bool, number: int, layer: int, now: float) -> None:
        run = self._runs[stage]
        seconds = float((run.backward_s if backward else run.forward_s)[layer])
        if not backward:
            self._live[stage] += float(run.held_bytes[layer])
            self._peak[stage] = max(self._peak[stage], self._live[stage])
        self._later(now, seconds, "layer", stage, backward, number, layer)

    def _layer_done(self, now: float, stage: int, backward: bool, number: int, layer: int) -> None:
        run = self._runs[stage]
        if backward:
            self._live[stage] -= float(run.held_bytes[layer])
            if number == self._last and run.sync_s.any():
                self._sums[stage].append(layer)
                if len(self._sums[stage]) == 1:
                    self._sum(stage, now)
        following = layer - 1 if backward else layer + 1
        if 0 <= following < len(run.forward_s):
            self._start_layer(stage, backward, number, following, now)
            return
        self._running[stage] = False
        self._place[stage] += 1
        other = stage - 1 if backward else stage + 1
        if 0 <= other < self._count:
            waiting = self._sends.setdefault((stage, backward), [])
            waiting.append(number)
            if len(waiting) == 1:
                self._send(stage, backward, now)
        elif not backward:
            self._ready[stage].add((True, number))
        if backward and number == self._last and not run.sync_s.any():
            self._end = max(self._end, now + run.finish_s)
        self._next_pass(stage, now)

    def _send(self, stage: int, backward: bool, now: float) -> None:
        border = self._borders[stage - 1 if backward else stage]
        seconds = border.backward_s if backward else border.forward_s
        number = self._sends[stage, backward][0]
        between = f"link {stage - 1}-{stage}" if backward else f"link {stage}-{stage + 1}"
        self._events.append(QueueEvent(between, str(number), "copy", now, now + seconds))
        self._later(now, seconds, "send", stage, backward)

    def _send_done(self, now: float, stage: int, backward: bool) -> None:
        waiting = self._sends[stage, backward]
        number = waiting.pop(0)
        if waiting:
            self._send(stage, backward, now)
        other = stage - 1 if backward else stage + 1
        self._ready[other].add((backward, number))
        self._next_pass(other, now)

    def _sum(self, stage: int, now: float) -> None:
        layer = self._sums[stage][0]
        seconds = float(self._runs[stage].sync_s[layer])
        self._events.append(QueueEvent(f"sync {stage}", str(layer), "sync", now, now + seconds))
        self._later(now, seconds, "sum", stage)

    def _sum_done(self, now: float, stage: int) -> None:
        layer = self._sums[stage].pop(0)
        if self._sums[stage]:
            self._sum(stage, now)
        elif layer == 0:
            self._end = max(self._end, now + self._runs[stage].finish_s)


def least_step_s(
    seconds: Floats, behind_s: Floats, ahead: int, microbatches: int, rest_s: Floats
) -> tuple[Floats, Floats]:
    """A step takes no less, as seen from one stage: lengths of paths through its passes.

    With t its seconds for a microbatch, R those from a forward pass of one through all stages behind it and back, m
    microbatches and n ahead, it has m t of work. A path may follow a microbatch to the stages behind and back; it then
    has R in place of the stage's own passes meanwhile: n - 1 of them forward for the first microbatch, n - 1 backward
    for the last one, n - 1 of both for one between. So m t + z R - (z - 1) (n - 1) t for z of them that lie n apart,
    and for a single one, the better of the first and the last, m t + R - (n - 1) t / 2.

    Args:
      seconds: t.
      behind_s: R, borders included.
      ahead: n.
      microbatches: m.
      rest_s: The same of the stages behind it, from their first pass to their last, with the way there and back.

    Returns:
      (from its first pass to its last, R as the stage in front of it sees it, its border apart).
    """
    meanwhile = (ahead - 1) * seconds
    trips = (microbatches - 1) // ahead + 1
    waits = np.maximum(0.0, behind_s - meanwhile / 2)
    for count in {2, trips} if trips > 1 else ():
        waits = np.maximum(waits, count * behind_s - (count - 1) * meanwhile)
    return np.maximum(microbatches * seconds + waits, seconds + rest_s), seconds + behind_s
