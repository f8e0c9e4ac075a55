"""Searching for plans under a memory limit: greedy, from the relaxation's solution, and by a Markov chain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tf_comptrain.planner.effects import Effects
from tf_comptrain.planner.plan import kind_of
from tf_comptrain.planner.simulator import CopiedSpans, PlanState
from tf_comptrain.planner.task_graph import KEEP


class FoundPlan(NamedTuple):
    """A plan.

    Attributes:
      chosen: Number of each tensor's choice.
      step_s: Seconds of the step.
      peak_bytes: Of the step, as `PlanState.measure` gives it.
    """

    chosen: tuple[int, ...]
    step_s: float
    peak_bytes: float


class PlanSearch:
    """Keeps the best plan under a limit while methods look for better ones.

    Args:
      effects: The compiled graph.
      state: Is changed by every method.
      limit_bytes: The peak that a plan may have.
      go_on: Whether there is time left; asked often.
      report: Is told of each better plan.

    Attributes:
      best: The fastest plan within the limit so far; None where there is none.
    """

    def __init__(
        self,
        effects: Effects,
        state: PlanState,
        limit_bytes: float,
        go_on: Callable[[], bool] = lambda: True,
        report: Callable[[FoundPlan], None] = lambda found: None,
    ):
        self.effects = effects
        self.state = state
        self.limit_bytes = limit_bytes
        self.best: FoundPlan | None = None
        self._go_on = go_on
        self._report = report
        self._moves = _Moves(effects)

    def note(self) -> tuple[float, float]:
        """Measures the state and remembers it where it is the best."""
        step_s, peak = self.state.measure()
        fits = self.state.unserved == 0 and peak <= self.limit_bytes
        if fits and (self.best is None or step_s < self.best.step_s):
            self.best = FoundPlan(tuple(self.state.chosen), step_s, peak)
            self._report(self.best)
        return step_s, peak

    def greedy(self) -> bool:
        """From the state on, makes the choice of fewest seconds per byte freed until the peak is within the limit.

        A byte counts once for each phase over the limit in which it is freed. Takes the time that it needs.

        Returns:
          Whether it is.
        """
        self._serve_all()
        tried: set[int] = set()
        while True:
            allowed = self.state.limit_of_live(self.limit_bytes)
            levels, copied = self.state.levels()
            over = levels > allowed
            if not over.any():
                self.note()
                return True
            if (self.state.live[over] <= allowed).any():  # the link is full
                tried.update(c for c, choice in enumerate(self.effects.choices) if choice.copies is not None)
            at_once = 1 + int(over.sum()) // 256
            if not self._free(over, copied, tried, at_once):
                return False

    def improve(self) -> None:
        """Takes back, one by one, what costs most, as long as the peak stays within the limit."""
        choices = self.effects.choices
        step_s, _ = self.note()
        changed = True
        while changed and self._go_on():
            changed = False
            costly = sorted({c for c in self.state.chosen if choices[c].label != KEEP}, key=self._cost)[::-1]
            for old in costly:
                if not self._go_on():
                    return
                if all(self.state.chosen[number] == old for number in choices[old].tensors):
                    before = step_s
                    step_s = self._cheapen(old, step_s)
                    changed |= step_s < before

    def from_shares(self, shares: NDArray[np.float64], random: np.random.Generator | None = None) -> None:
        """Sets the state to a plan near a solution of the relaxation, within the limit or not.

        Args:
          shares: [choices] of the solution.
          random: Draws each choice with its share as the probability; None: the largest share.
        """
        choices = self.effects.choices
        weights = shares if random is None else shares * random.exponential(1.0, shares.size) ** -0.5
        plan = list(range(len(self.state.chosen)))
        for number, offered in enumerate(self.effects.of_tensor):
            single = [place for place in offered if len(choices[place].tensors) == 1]
            plan[number] = max(single, key=lambda place: weights[place])
        self.state.restore(plan)
        joint = [place for place, choice in enumerate(choices) if len(choice.tensors) > 1]
        for place in sorted(joint, key=lambda place: -weights[place]):
            members = choices[place].tensors
            if weights[place] > 0 and all(
                weights[place] >= weights[self.state.chosen[number]] for number in members
            ):
                self.state.set(place)
        self._serve_all()

    def markov_chain(
        self, random: np.random.Generator, steps: int, start: Sequence[int] | None = None
    ) -> None:
        """Metropolis steps of one tensor, a block of tensors, or a neighbour's choice.

        Accepted with probability exp(-beta * relative change); beta rises from 20 to 20,000. A peak over the limit
        costs its relative excess four times over, and such plans are never the best.

        Args:
          random: Source of the proposals.
          steps: Of the chain; it ends before where time is up.
          start: The plan to begin with; None: the state's.

        Reference:
          Jia et al., Beyond Data and Model Parallelism for Deep Neural Networks (FlexFlow), MLSys 2019.
        """
        if start is not None:
            self.state.restore(start)
        free = [number for number, offered in enumerate(self.effects.of_tensor) if len(offered) > 1]
        if not free:
            return
        cost = self._penalized(*self.note())
        for step in range(steps):
            if step % 16 == 0 and not self._go_on():
                return
            undo = self._propose(random, free)
            if not undo:
                continue
            new = self._penalized(*self.note())
            beta = 20.0 * 1000.0 ** (step / steps)
            if new <= cost or random.random() < math.exp(-beta * (new - cost) / cost):
                cost = new
            else:
                self._set_all(undo)

    def _penalized(self, step_s: float, peak: float) -> float:
        excess = max(peak / self.limit_bytes - 1, 0.0)
        return step_s * (1 + 4 * excess + self.state.unserved)

    def _propose(self, random: np.random.Generator, free: list[int]) -> list[int]:
        """Changes the state; returns the choices that undo it, none where nothing changed."""
        kind, place = random.random(), int(random.integers(len(free)))
        offered = self.effects.of_tensor[free[place]]
        drawn = offered[int(random.integers(len(offered)))]
        if kind < 0.6:
            return self.state.set(drawn)
        if kind < 0.8:
            neighbour = free[place - 1] if random.random() < 0.5 else free[(place + 1) % len(free)]
            numbers, label = [free[place]], self._kind(self.state.chosen[neighbour])
        else:
            numbers, label = free[place : place + int(random.integers(2, 9))], self._kind(drawn)
        undo: list[int] = []
        for number in numbers:
            same = [choice for choice in self.effects.of_tensor[number] if self._kind(choice) == label]
            if same:
                undo = self.state.set(same[0]) + undo
        return undo

    def _set_all(self, choices: list[int]) -> None:
        for choice in choices:
            self.state.set(choice)

    def _kind(self, choice: int) -> str:
        return kind_of(self.effects.choices[choice].label)

    def _cost(self, choice: int) -> float:
        return self._moves.seconds[choice]

    def _serve_all(self) -> None:
        """Holds, as small as may be, whatever something is rebuilt from and is not held."""
        choices = self.effects.choices
        while self.state.unserved:
            needed = {read.tensor for c in set(self.state.chosen) for read in choices[c].reads}
            for number in needed:
                if not choices[self.state.chosen[number]].is_source:
                    ways = [c for c in self.effects.of_tensor[number] if choices[c].is_source]
                    ways = [c for c in ways if choices[c].copies is None]
                    self.state.set(min(ways, key=lambda c: choices[c].held_bytes))

    def _free(
        self, over: NDArray[np.bool_], copied: CopiedSpans | None, tried: set[int], at_once: int
    ) -> bool:
        """Makes up to `at_once` choices that free bytes in the phases marked; False where there is none."""
        gains, costs = self._moves.compare(self.state.chosen, over, copied)
        usable = gains > 0
        usable[list(tried)] = False
        ratio = np.where(usable, np.maximum(costs, 1e-12) / np.where(usable, gains, 1.0), np.inf)
        made = 0
        for choice in np.argsort(ratio)[: 8 * at_once + 64].tolist():
            if not np.isfinite(ratio[choice]) or made >= at_once:
                break
            tried.add(choice)
            undo = self.state.set(choice)
            self._serve_all()
            made += bool(undo)
        return made > 0

    def _cheapen(self, old: int, step_s: float) -> float:
        """Replaces one choice by the cheapest that fits; returns the seconds of the step."""
        numbers = self.effects.choices[old].tensors
        if len(numbers) > 1:
            offered = [numbers[0]]
        else:
            offered = sorted(self.effects.of_tensor[numbers[0]], key=self._cost)
            offered = [c for c in offered if len(self.effects.choices[c].tensors) == 1]
        for choice in offered:
            if choice == old or self._cost(choice) >= self._cost(old):
                break
            undo = self.state.set(choice)
            if self.state.unserved == 0 and self.state.may_fit(self.limit_bytes):
                new_s, peak = self.note()
                if peak <= self.limit_bytes and new_s < step_s:
                    return new_s
            self._set_all(undo)
        return step_s


class _Moves:
    """Seconds and bytes of all choices at once."""

    def __init__(self, effects: Effects):
        choices = effects.choices
        self.seconds = np.array([choice.total_s for choice in choices], float)
        # Copies run beside the computation; a small price makes them come after what is free.
        self.seconds += [1e-3 * (c.copies.out_s + c.copies.in_s) if c.copies else 0.0 for c in choices]
        self._tensor_bytes = effects.copies.size
        spans = np.array([(c, *span) for c, choice in enumerate(choices) for span in choice.spans])
        self._choice, self._start, self._end = (spans[:, k].astype(int) for k in range(3))
        self._bytes = spans[:, 3]
        pairs = [(c, number) for c, choice in enumerate(choices) for number in choice.tensors]
        self._of, self._tensor = (np.array(part) for part in zip(*pairs))
        self._sizes = np.array([len(choice.tensors) for choice in choices])

    def compare(
        self, chosen: list[int], over: NDArray[np.bool_], copied: CopiedSpans | None
    ) -> tuple[NDArray, NDArray]:
        """([choices] bytes times phases freed where marked, [choices] seconds added) against the present choices."""
        count = len(self.seconds)
        marked = np.concatenate(([0], np.cumsum(over)))
        weights = self._bytes * (marked[self._end] - marked[self._start])
        held = np.bincount(self._choice, weights, count).astype(float)  # of nothing it has whole numbers
        now = np.array(chosen)
        if copied is not None:
            waiting = self._tensor_bytes[copied.tensor] * (marked[copied.end] - marked[copied.start])
            held += np.bincount(now[copied.tensor], waiting, count)
        share = 1.0 / self._sizes[now]  # a segment's part of each of its tensors
        held_before = np.bincount(self._of, (held[now] * share)[self._tensor], count)
        seconds_before = np.bincount(self._of, (self.seconds[now] * share)[self._tensor], count)
        return held_before - held, self.seconds - seconds_before
