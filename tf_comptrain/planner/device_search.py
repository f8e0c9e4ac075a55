"""The search for a strategy over devices, and the bound below which none is."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tf_comptrain.planner.partitions import Division, Exact, Partitions
from tf_comptrain.planner.stage_costs import StageCosts, StageRange
from tf_comptrain.planner.stages import SPLITS
from tf_comptrain.planner.strategies import Strategy, keeps_to_nodes, work_out

UNEVEN = 8  # up to so many devices a stage may have more of them than another
_CLOSE = 1e-3  # a gap at which the search ends
_ROUGH = 1e-2
_FOR_START = 0.3  # of the time
_MOST_PATHS = 64  # stages, for the program that balances paths
_HALVINGS = 24
_FEW_LAYERS, _MOST_LISTED = 80, 3000  # up to where divisions are looked at one by one


class FoundStrategy(NamedTuple):
    """What a search found.

    Attributes:
      strategy: The best; None where none fits.
      bound_s: No strategy takes less; infinite where it is proved that none fits.
    """

    strategy: Strategy | None
    bound_s: float


class _Shape(NamedTuple):
    """Strategies that are searched together.

    Attributes:
      bound_s: None of them takes less.
      microbatches: Of a step.
      used: Devices.
      counts: Devices that a stage may have.
    """

    bound_s: float
    microbatches: int
    used: int
    counts: tuple[int, ...]


class DeviceSearch:
    """Finds a strategy of least time.

    Args:
      costs: Of the stages of a model on a machine.
      devices: How many there are.
      budget_s: Seconds that it may take.
      told: Is told of the best strategy so far, and the bound.
    """

    def __init__(
        self,
        costs: StageCosts,
        devices: int,
        budget_s: float,
        told: Callable[[Strategy | None, float], None] | None = None,
    ):
        self._costs, self._devices, self._told = costs, devices, told
        self._budget_s = budget_s
        self._until = time.monotonic() + budget_s
        self._exact: Exact = {}
        self._best: Strategy | None = None
        self._last: Division | None = None

    def run(self) -> FoundStrategy:
        """Searches until the gap is 0.1%, the time is over, or it is interrupted."""
        shapes = sorted(self._shapes())
        proved = {shape: shape.bound_s for shape in shapes}
        try:
            self._start(shapes)
            with contextlib.suppress(TimeoutError):
                for shape in shapes:
                    if shape.bound_s >= self._limit_s():
                        break
                    proved[shape] = self._divide(shape, proved[shape])
                    self._tell(min(proved.values()))
                self._refine(proved)
            if self._best is not None:
                self._move_borders(min(proved.values(), default=math.inf))
        except KeyboardInterrupt:
            pass
        bound = min(proved.values(), default=math.inf)
        return FoundStrategy(self._best, bound if self._best is None else min(bound, self._best.step_s))

    def _shapes(self) -> Iterator[_Shape]:
        of_used = dict.fromkeys(self._devices >> k for k in range(self._devices.bit_length()))
        for microbatches in divisors(self._costs.chain.batch):
            for used in of_used:
                for counts in self._counts(used):
                    stages = used // counts[0] if len(counts) == 1 else 0
                    bound = self._shape_bound_s(microbatches, used, stages)
                    if stages <= self._costs.count and math.isfinite(bound):
                        yield _Shape(bound, microbatches, used, counts)

    def _counts(self, used: int) -> list[tuple[int, ...]]:
        powers = [1 << k for k in range(used.bit_length())]
        if used <= UNEVEN:
            return [(used,), tuple(sorted({*powers, used} - {used}))] if used > 1 else [(1,)]
        return [(devices,) for devices in sorted({*powers, used}) if used % devices == 0]

    def _shape_bound_s(self, microbatches: int, used: int, stages: int) -> float:
        """No strategy of a shape takes less: all work, shared evenly; `stages` 0: of any number of stages."""
        costs = self._costs
        launch = float((costs.of["forward_launch_s"] + costs.of["backward_launch_s"]).sum())
        work = float((costs.of["forward_s"] + costs.of["backward_s"]).sum())
        state = float(costs.of["weight_bytes"].sum()) * (2 + costs.chain.slots)
        room = microbatches * (used * costs.memory_bytes - state)
        ends = np.array([costs.count])
        held = float(costs.with_offload.bound_s(0, ends, np.array([room]))[0]) if room >= 0 else math.inf
        shared = (microbatches * launch + work + held) / used
        if stages == 0:
            return shared
        each = launch + (work + held) * stages / (microbatches * used)
        return max(shared, balanced_paths(microbatches, stages) * each)

    def _start(self, shapes: list[_Shape]) -> None:
        """Divisions as even as they can be, for a first limit; few stages first, which are soon tried."""
        until = self._until - (1 - _FOR_START) * self._budget_s
        for shape in sorted(shapes, key=lambda s: (-s.used, s.used // max(s.counts), s.bound_s)):
            if self._best is not None and time.monotonic() > until:
                return
            if shape.bound_s >= self._limit_s():
                continue
            for devices in shape.counts:
                if shape.used % devices == 0 and shape.used // devices <= self._costs.count:
                    places = self._even(shape.microbatches, shape.used, devices, until)
                    if places and self._partitions(shape).bound_s(places) < self._limit_s():
                        self._try(shape.microbatches, places, _ROUGH)

    def _even(
        self, microbatches: int, used: int, devices: int, until: float
    ) -> tuple[StageRange, ...] | None:
        """Stages of like numbers of devices whose longest is as short as can be, by halving."""
        costs = self._costs
        high = 2 * float((costs.of["forward_s"] + costs.of["backward_s"]).sum()) / microbatches + 1.0
        if math.isfinite(self._limit_s()):
            high = self._limit_s() / microbatches
        best, low = self._filled(microbatches, used, devices, high), 0.0
        for _ in range(_HALVINGS if best is not None else 0):
            middle = (low + high) / 2
            places = self._filled(microbatches, used, devices, middle)
            if places is None:
                low = middle
            else:
                best, high = places, middle
            if high - low < _CLOSE * high or time.monotonic() > until:
                break
        return best

    def _filled(
        self, microbatches: int, used: int, devices: int, most_s: float
    ) -> tuple[StageRange, ...] | None:
        """Stages, each with as many layers as it can have in so many seconds; None where layers are left over."""
        costs, count, start, stages = self._costs, self._costs.count, 0, used // devices
        places = []
        for number in range(stages):
            ends = np.arange(start + 1, count - (stages - number - 1) + 1)
            reached, best = start, ""
            for split in SPLITS:
                if not costs.is_possible(microbatches, devices, split):
                    continue
                part = costs.part(microbatches, devices, split)
                within = int(np.searchsorted(part.base_s[ends] - part.base_s[start], most_s, "right"))
                some = ends[: min(within, int(part.reach[start]) - start)]
                if not len(some):
                    continue
                seconds = costs.bound_s(part, split, min(microbatches, stages - number), start, some)
                fitting = np.flatnonzero(seconds <= most_s)
                if len(fitting) and some[fitting[-1]] > reached:
                    reached, best = int(some[fitting[-1]]), split
            if reached == start:
                return None
            places.append(StageRange(start, reached, devices, best))
            start = reached
        return tuple(places) if start == count else None

    def _divide(self, shape: _Shape, bound: float) -> float:
        """Tries the best divisions of a shape; returns the bound that is then known, at least `bound`.

        Raises:
          TimeoutError: It took too long.
        """
        partitions = self._partitions(shape)
        limit = self._limit_s()
        found = partitions.best(limit, shape.used // min(shape.counts))
        for division in found:
            self._try(shape.microbatches, division.places)
        self._last = found[0] if found else None
        return max(bound, found[0].bound_s if found else limit)

    def _refine(self, proved: dict[_Shape, float]) -> None:
        """Takes the shape with the lowest bound each time, and gets to know its best division's stages better.

        Raises:
          TimeoutError: It took too long.
        """
        settled: set[_Shape] = set()
        while not self._is_over():
            open_ = [shape for shape in proved if proved[shape] < self._limit_s() and shape not in settled]
            if not open_:
                return
            shape = min(open_, key=proved.__getitem__)
            proved[shape] = self._divide(shape, proved[shape])
            if proved[shape] < self._limit_s() and not (
                self._last is not None and self._sharpen(shape.microbatches, self._last)
            ):
                settled.add(shape)
                proved[shape] = max(proved[shape], self._one_by_one(shape))
            self._tell(min(proved.values()))

    def _partitions(self, shape: _Shape) -> Partitions:
        return Partitions(self._costs, shape.microbatches, shape.used, shape.counts, self._until, self._exact)

    def _one_by_one(self, shape: _Shape) -> float:
        """All divisions that may be better than the best so far, where they can be listed; and the bound after that."""
        if self._costs.count > _FEW_LAYERS or not math.isfinite(self._limit_s()):
            return 0.0
        bound = math.inf
        partitions = self._partitions(shape)
        most_stages = shape.used // min(shape.counts)
        for division in partitions.best(self._limit_s(), most_stages, _MOST_LISTED, every=True):
            if self._is_over() or division.bound_s >= self._limit_s():
                return min(bound, max(division.bound_s, 0.0))
            self._sharpen(shape.microbatches, division)
            known = partitions.bound_s(division.places)
            if known < self._limit_s():
                self._try(shape.microbatches, division.places)
                bound = min(bound, known)
        return min(bound, self._limit_s())

    def _sharpen(self, microbatches: int, division: Division) -> bool:
        """Learns what the stages of a division take without the relaxation; whether that is more for any."""
        learned = False
        for number, place in enumerate(division.places):
            ahead = min(microbatches, len(division.places) - number)
            part = self._costs.part(microbatches, place.devices, place.split)
            ends = np.array([place.end])
            relaxed = float(self._costs.bound_s(part, place.split, ahead, place.start, ends)[0])
            known = self._exact.setdefault((microbatches, place.devices, place.split, ahead, place.start), {})
            if place.end in known:
                continue
            room = float(self._costs.room(part, ahead, place.start, ends)[0])
            choice = self._costs.holdings(place.split).choose(place.start, place.end, room)
            base = float(part.base_s[place.end] - part.base_s[place.start])
            exact = math.inf if choice is None else base + part.held_part * choice.bound_s
            known[place.end] = exact
            learned = learned or exact > relaxed * (1 + 1e-9)
        return learned

    def _try(self, microbatches: int, places: tuple[StageRange, ...] | None, worth: float = _CLOSE) -> None:
        if places is None or not self._keeps_to_nodes(places):
            return
        strategy = work_out(self._costs, microbatches, places, worth)
        if strategy is not None and (self._best is None or strategy.step_s < self._best.step_s):
            self._best = strategy

    def _keeps_to_nodes(self, places: tuple[StageRange, ...]) -> bool:
        start, nodes = 0, self._costs.hardware.node_devices
        for place in places:
            if not keeps_to_nodes(start, place.devices, nodes):
                return False
            start += place.devices
        return True

    def _move_borders(self, bound_s: float) -> None:
        """Moves a border at a time while the step gets shorter."""
        better = True
        while better and self._best is not None and self._best.step_s * (1 - _CLOSE) > bound_s:
            before = self._best
            for number in range(len(before.places) - 1):
                for by in (-4, -2, -1, 1, 2, 4):
                    if self._is_over():
                        return
                    places = _moved(before.places, number, by)
                    if places is not None:
                        self._try(before.microbatches, places)
            better = self._best.step_s < before.step_s * (1 - 1e-6)

    def _limit_s(self) -> float:
        """A strategy that takes more is of no use."""
        return math.inf if self._best is None else self._best.step_s * (1 - _CLOSE / 2)

    def _is_over(self) -> bool:
        return time.monotonic() > self._until

    def _tell(self, bound_s: float) -> None:
        if self._told is not None:
            self._told(self._best, bound_s)


def divisors(number: int) -> list[int]:
    """All of them, from 1 up."""
    small = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
    return sorted({*small, *(number // k for k in small)})


@functools.lru_cache(None)
def balanced_paths(microbatches: int, stages: int) -> float:
    """A factor f for which a step takes at least f times the seconds of a microbatch in all stages together.

    Each path through the passes of a step is a sum over stages of coefficient times seconds, and so is each mean of
    paths; f is the largest for which a mean has no coefficient below it. About (m + S - 1) / S.
    """
    if stages > _MOST_PATHS:
        return max(microbatches / stages, 1.0)
    import scipy.optimize  # which takes longer to import than all of this package

    paths = np.array([path for stage in range(stages) for path in _paths(microbatches, stages, stage)])
    gains = np.concatenate((np.zeros(len(paths)), [-1.0]))  # the mean's weights, and the factor
    found = scipy.optimize.linprog(
        gains,
        A_ub=np.column_stack((-paths.T, np.ones(stages))),
        b_ub=np.zeros(stages),
        A_eq=np.concatenate((np.ones(len(paths)), [0.0]))[None],
        b_eq=[1.0],
    )
    return max(float(found.x[-1]) * (1 - 1e-9), 1.0) if found.x is not None else 1.0


def _paths(microbatches: int, stages: int, stage: int) -> list[list[float]]:
    """Coefficients of the paths that `pipeline.least_step_s` knows of."""
    ahead = min(microbatches, stages - stage)
    trips = (microbatches - 1) // ahead + 1
    ways = [(microbatches, 0.0), (microbatches - (ahead - 1) / 2, 1.0)]
    for count in {2, trips} if trips > 1 else ():
        ways.append((microbatches - (count - 1) * (ahead - 1), float(count)))
    return [[1.0] * stage + [own] + [behind] * (stages - stage - 1) for own, behind in ways]


def _moved(places: tuple[StageRange, ...], number: int, by: int) -> tuple[StageRange, ...] | None:
    before, after = places[number : number + 2]
    border = before.end + by
    if not before.start < border < after.end:
        return None
    moved = (before._replace(end=border), after._replace(start=border))
    return places[:number] + moved + places[number + 2 :]
