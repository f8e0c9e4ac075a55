"""The least time, or the least memory, that any plan can have: a mixed-integer program solved by HiGHS.

Variables: x, whether a choice is made (each tensor gets exactly one); e, whether a held tensor is read once more, since
something is rebuilt from it; z, which of the tensor's choices serves that read; u, how far that makes the tensor
live. The time is linear in them, and so is the memory of each phase. Rows of memory are added where a solution
breaks them: of thousands of phases some tens matter. A program without the others, and one in which copies cost no
memory while they are under way, is a relaxation, so its optimum is a bound in any case.

Reference:
  Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020, whose program
  knows keeping and recomputing; Huangfu and Hall, Parallelizing the dual revised simplex method (HiGHS), 2018.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from tf_comptrain.planner.effects import Effects, SourceRead

Array = np.ndarray
_ROWS_AT_ONCE = 24
_TOLERANCE = 1e-7  # of the memory limit
_TIE = 1e-6  # weight of seconds where memory is minimized
_FORBIDDEN = 1e4  # times the largest tensor
_COPY_PRICE = 0.02  # seconds per second on the link
_OPTIMAL, _INFEASIBLE = 0, 2  # SciPy's status


class Solution(NamedTuple):
    """Of the program, or of its relaxation.

    Attributes:
      bound: No plan has less: seconds, or bytes where memory was minimized; infinite where no plan exists.
      shares: [choices] how much of each choice is taken; 0 or 1 in a plan, empty where none was found.
    """

    bound: float
    shares: Array


class _MemoryRow(NamedTuple):
    """A row of memory: of the bytes in a phase, of which some may be those that a link cannot have moved by then.

    Attributes:
      phase: Whose bytes.
      since: Copies out that became ready after this phase can at most have moved for the time from there; -1: none.
      until: Copies in that are needed up to this phase have at most the time until then; -1: none.
    """

    phase: int
    since: int = -1
    until: int = -1


class Program:
    """The mixed-integer program of a compiled task graph.

    Rows that one call has added stay for the next ones.

    Args:
      effects: The compiled graph.
    """

    def __init__(self, effects: Effects):
        self._effects = effects
        self._choices = len(effects.choices)
        self._plain_s = float(effects.durations.sum())
        self._nominal = np.concatenate(([0.0], np.cumsum(effects.durations)))
        # What further variables add to a column's figures follows the choices'.
        self._columns = self._choices
        self._spans = [[c, *span] for c, choice in enumerate(effects.choices) for span in choice.spans]
        self._work = [[c, *work] for c, choice in enumerate(effects.choices) for work in choice.seconds]
        self._rows: list[list[tuple[int, float]]] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        for numbers in effects.of_tensor:
            self._add_row([(column, 1.0) for column in numbers], 1.0, 1.0)
        self._add_reads()
        self._wait = self._add_column()
        spans, work = np.array(self._spans).reshape(-1, 4), np.array(self._work).reshape(-1, 3)
        column, start, end = spans[:, :3].T.astype(int)
        self._span = _Spans(column, start, end, spans[:, 3])
        self._work_column, self._work_phase = work[:, :2].T.astype(int)
        self._work_s = work[:, 2]
        self._seconds = np.bincount(self._work_column, self._work_s, self._columns).astype(float)
        self._seconds[self._wait] = 1.0
        self._copies = _copies_of(effects)
        self._add_busy_links()
        self._scale = max(float(np.abs(self._span.size).max(initial=0.0)), 1.0)
        self._memory: list[_MemoryRow] = []
        self._link_share = 1.0

    def least_time(
        self, live_bytes: float, whole: bool, budget_s: float, gap: float = 1e-4, link_share: float = 1.0
    ) -> Solution:
        """The least seconds of a step whose live bytes stay within a limit.

        Args:
          live_bytes: The limit; resting bytes and the allocator's waste are not part of it.
          whole: Whether choices are made wholly (branch and bound); else their relaxation is solved.
          budget_s: Seconds after which the best bound so far is returned.
          gap: Relative distance to the bound at which branch and bound stops.
          link_share: Part of the link's speed that is counted upon. Below 1 the solution leaves room for what whole
            tensors take beyond the program's flow of bytes, copies have a small price, and its `bound` is none.
        """
        self._link_share = link_share
        cost = self._seconds.copy()
        if link_share < 1:
            cost[self._copies.column] += _COPY_PRICE * self._copies.in_s
        return self._solve(cost, live_bytes, whole, budget_s, gap)

    def least_memory(self, whole: bool, budget_s: float, copies: bool = True) -> Solution:
        """The least bytes that have to be live, whatever the time; arguments as in `least_time`.

        Args:
          copies: Whether tensors may be copied; where they may not, the bound is for plans without copies.
        """
        self._link_share = 1.0
        cost = _TIE * self._seconds / self._plain_s
        if not copies:
            cost[self._copies.column] = _FORBIDDEN
        return self._solve(cost, None, whole, budget_s, gap=1e-3)

    def _solve(self, cost: Array, limit: float | None, whole: bool, budget_s: float, gap: float) -> Solution:
        deadline = time.monotonic() + budget_s
        best = Solution(0.0, np.zeros(0))
        if not self._memory:
            kept = np.zeros(self._columns)
            kept[: len(self._effects.of_tensor)] = 1.0
            self._memory = self._violated(kept, 0.0)[:1]
        while deadline > time.monotonic():
            bound, values = self._solve_rows(cost, limit, whole, deadline - time.monotonic(), gap)
            best = Solution(max(best.bound, bound), values[: self._choices])
            if values.size == 0:
                break
            allowed = limit if limit is not None else values[-1] * self._scale
            new = self._violated(values[: self._columns], allowed)
            if not new:
                break
            self._memory += new
        return best

    def _solve_rows(
        self, cost: Array, limit: float | None, whole: bool, budget_s: float, gap: float
    ) -> tuple[float, Array]:
        """(bound, values) of the program with the rows that it has; no values where none were found."""
        from scipy import optimize  # which takes longer to import than all of this package

        rows, lower, upper = self._matrix(limit)
        unit, top = self._plain_s / 100, np.ones(self._columns)
        top[self._wait] = np.inf
        if limit is None:  # one more variable: the peak, in units of the largest span
            unit, cost, top = 1.0, np.append(cost, 1.0), np.append(top, np.inf)
        integrality = np.zeros(len(cost))
        integrality[: self._choices] = whole
        result = optimize.milp(
            cost / unit,
            integrality=integrality,
            bounds=optimize.Bounds(np.zeros(len(cost)), top),
            constraints=optimize.LinearConstraint(rows, lower, upper),
            options={"time_limit": max(budget_s, 0.01), "mip_rel_gap": gap},
        )
        if result.status == _INFEASIBLE:
            return np.inf, np.zeros(0)
        if not whole and result.status != _OPTIMAL:  # out of time: what it has reached bounds nothing
            return 0.0, np.zeros(0)
        reached = result.mip_dual_bound if whole else result.fun
        reached = reached if reached is not None and np.isfinite(reached) else 0.0
        values = result.x if result.x is not None else np.zeros(0)
        if limit is None:
            return max(reached - self._largest_tie(), 0.0) * self._scale, values
        return self._plain_s + max(reached * unit, 0.0), values

    def _largest_tie(self) -> float:
        """By how much the weight of seconds, which breaks ties, may have raised the least memory."""
        return _TIE * float(self._seconds[: self._choices].sum()) / self._plain_s

    def _matrix(self, limit: float | None) -> Any:
        """The rows, with those of memory, as a sparse matrix with lower and upper limits."""
        from scipy import sparse

        columns = self._columns + (limit is None)
        entries = [(row, column, factor) for row, items in enumerate(self._rows) for column, factor in items]
        at, of, factors = (np.array(part) for part in zip(*entries))
        parts = [sparse.csr_matrix((factors, (at, of)), shape=(len(self._rows), columns))]
        upper = list(self._upper)
        for row in self._memory:
            factors, fixed = self._memory_row(row)
            factors /= self._scale
            if limit is None:
                factors = np.append(factors, -1.0)
            upper.append((limit or 0.0) / self._scale - fixed / self._scale)
            parts.append(sparse.csr_matrix(factors))
        lower = self._lower + [-np.inf] * len(self._memory)
        return sparse.vstack(parts, "csr"), np.array(lower), np.array(upper)

    def _memory_row(self, row: _MemoryRow) -> tuple[Array, float]:
        """(bytes in the phase by column, bytes that are there in any case)."""
        active = self._span.active(row.phase)
        counted = np.bincount(self._span.column[active], self._span.size[active], self._columns)
        bytes_: Array = counted.astype(float)  # whole numbers where there are none
        fixed = float(self._effects.fixed[row.phase])
        copies = self._copies
        if row.since >= 0:
            pending, rate = copies.made_in(row.since, row.phase), copies.rate_out * self._link_share
            start, end = row.since, row.phase
        elif row.until >= 0:
            pending, rate = copies.needed_in(row.phase, row.until), copies.rate_in * self._link_share
            start, end = row.phase, row.until
        else:
            return bytes_, fixed
        bytes_[copies.column[pending]] = copies.size[pending]
        during = (start <= self._work_phase) & (self._work_phase < end)
        added_s = np.bincount(self._work_column[during], self._work_s[during], self._columns)
        bytes_ -= rate * added_s
        bytes_[self._wait] -= rate
        return bytes_, fixed - rate * float(self._nominal[end] - self._nominal[start])

    def _violated(self, values: Array, limit: float) -> list[_MemoryRow]:
        """Rows that a solution breaks: the highest of each hill of the memory curve, the worst of them."""
        live = self._effects.fixed + self._span.levels(values, self._effects.phases)
        slack = _TOLERANCE * max(abs(limit), self._scale)
        found = [(live[t], _MemoryRow(t)) for t in _hills(live, limit + slack)]
        if self._copies.column.size:
            found += self._violated_by_copies(values, live, limit + slack)
        known = set(self._memory)
        found = sorted((item for item in found if item[1] not in known), key=lambda item: -item[0])
        return [row for _, row in found[:_ROWS_AT_ONCE]]

    def _violated_by_copies(self, values: Array, live: Array, limit: float) -> list[tuple[float, _MemoryRow]]:
        """Phases in which the link cannot have moved enough, each with the time span that shows it best."""
        copies, phases = self._copies, self._effects.phases
        work = np.bincount(self._work_phase, self._work_s * values[self._work_column], phases)
        clock = self._nominal + np.concatenate(([0.0], np.cumsum(work)))
        sizes = copies.size * values[copies.column]
        made = np.cumsum(np.bincount(copies.made, sizes, phases + 1))
        needed = np.cumsum(np.bincount(copies.needed, sizes, phases + 1))
        raw = _Spans(np.arange(len(sizes)), copies.begin, copies.raw_end, sizes)
        idle = made - self._link_share * copies.rate_out * clock
        since = _last_minimum(idle)
        unmoved = idle - idle[since]
        rest = live - raw.levels(np.ones(len(sizes)), phases)
        found = [
            (float(rest[t] + unmoved[t]), _MemoryRow(int(t), since=int(since[t])))
            for t in _hills(rest + unmoved[:-1], limit)
        ]
        ahead = needed - self._link_share * copies.rate_in * clock
        until = phases - _last_minimum(-ahead[::-1])[::-1]
        early = ahead[until] - ahead
        found += [
            (float(rest[t] + early[t]), _MemoryRow(int(t), until=int(until[t])))
            for t in _hills(rest + early[:-1], limit)
        ]
        return found

    def _add_row(self, items: list[tuple[int, float]], lower: float, upper: float) -> None:
        self._rows.append(items)
        self._lower.append(lower)
        self._upper.append(upper)

    def _add_column(self) -> int:
        self._columns += 1
        return self._columns - 1

    def _add_reads(self) -> None:
        """Whatever is rebuilt makes its sources be read, and one choice of each serves that."""
        readers: dict[SourceRead, list[int]] = {}
        for column, choice in enumerate(self._effects.choices):
            for read in choice.reads:
                readers.setdefault(read, []).append(column)
        reaching: dict[int, list[tuple[int, int]]] = {}  # choice -> (phase, z)
        for read, columns in readers.items():
            e = self._add_column()
            for column in columns:
                self._add_row([(e, 1.0), (column, -1.0)], 0.0, np.inf)
            served = [(e, -1.0)]
            for place in self._effects.of_tensor[read.tensor]:
                choice = self._effects.choices[place]
                if read not in choice.servings:
                    continue
                serving, z = choice.servings[read], self._add_column()
                self._spans += [[z, *span] for span in serving.spans]
                self._work += [[z, *work] for work in serving.seconds]
                self._add_row([(z, 1.0), (place, -1.0)], -np.inf, 0.0)
                served.append((z, 1.0))
                if serving.reach:
                    reaching.setdefault(place, []).append((serving.reach, z))
            self._add_row(served, 0.0, 0.0)
        for place, reads in reaching.items():
            self._add_reach(place, reads)

    def _add_reach(self, place: int, reads: list[tuple[int, int]]) -> None:
        """The tensor lives on, stretch by stretch, as far as the last of the reads that it serves."""
        choice = self._effects.choices[place]
        before = choice.end
        for phase in sorted({phase for phase, _ in reads}):
            u = self._add_column()
            self._spans.append([u, before, phase, choice.held_bytes])
            for _, z in (item for item in reads if item[0] >= phase):
                self._add_row([(u, 1.0), (z, -1.0)], 0.0, np.inf)
            before = phase

    def _add_busy_links(self) -> None:
        """The step takes at least as long as each direction of the link is busy."""
        if not self._copies.column.size:
            return
        work = [(column, s) for column, s in enumerate(self._seconds.tolist()) if s and column != self._wait]
        for seconds in (self._copies.out_s, self._copies.in_s):
            busy = np.zeros(self._columns)
            busy[self._copies.column] = -seconds
            for column, s in work:
                busy[column] += s
            busy[self._wait] = 1.0
            items = [(column, factor) for column, factor in enumerate(busy.tolist()) if factor]
            self._add_row(items, -self._plain_s, np.inf)


class _Spans(NamedTuple):
    """Bytes held by columns over spans of phases; arrays of one length."""

    column: Array
    start: Array
    end: Array
    size: Array

    def active(self, phase: int) -> Array:
        return (self.start <= phase) & (phase < self.end)

    def levels(self, values: Array, phases: int) -> Array:
        """[phases] bytes, where each column is taken as often as `values` says."""
        sizes = self.size * values[self.column]
        steps = np.bincount(self.start, sizes, phases + 1) - np.bincount(self.end, sizes, phases + 1)
        return np.cumsum(steps)[:-1]


class _CopyChoices(NamedTuple):
    """The choices that copy their tensor out and in; arrays of one length."""

    column: Array
    begin: Array
    made: Array
    raw_end: Array
    needed: Array
    size: Array
    out_s: Array
    in_s: Array

    @property
    def rate_out(self) -> float:
        """The highest bytes per second of any copy out."""
        return float((self.size / np.maximum(self.out_s, 1e-12)).max(initial=0.0))

    @property
    def rate_in(self) -> float:
        return float((self.size / np.maximum(self.in_s, 1e-12)).max(initial=0.0))

    def made_in(self, after: int, until: int) -> Array:
        """Those that became ready after one phase, up to another, and are not needed yet."""
        return (after < self.made) & (self.made <= until) & (until < self.needed)

    def needed_in(self, after: int, until: int) -> Array:
        """Those that are needed after one phase, up to another, and were made before."""
        return (after < self.needed) & (self.needed <= until) & (self.begin <= after)


def _copies_of(effects: Effects) -> _CopyChoices:
    moved = [(column, *c.copies) for column, c in enumerate(effects.choices) if c.copies is not None]
    table = np.array(moved).reshape(-1, 7).T
    column, begin, gone, back = table[[0, 2, 3, 4]].astype(int)
    return _CopyChoices(column, begin, begin + 1, gone, back, table[1], table[5], table[6])


def _hills(levels: Array, limit: float) -> list[int]:
    """Where a curve is over a limit and higher than before and after, its plateaus counted once."""
    padded = np.concatenate(([-np.inf], levels, [-np.inf]))
    top = (levels > padded[:-2]) & (levels >= padded[2:]) & (levels > limit)
    return np.flatnonzero(top).tolist()


def _last_minimum(values: Array) -> Array:
    """For each place, where the smallest value up to there is."""
    lowest = np.minimum.accumulate(values)
    return np.maximum.accumulate(np.where(values <= lowest, np.arange(len(values)), 0))
