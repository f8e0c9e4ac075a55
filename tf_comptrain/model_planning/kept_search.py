"""Which tensors a compiled step keeps within a limit: few steps are compiled, and each tells where its peak is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

USED = 0.99  # of the limit: where a step takes as much, the search ends
_GOAL = 0.997  # of the limit: what is estimated is meant to come to
_BOLDNESS = 0.25  # left after each step over the limit
_PASSES = 3  # over the steps that an estimate has to agree with


class KeepableTensor(NamedTuple):
    """A tensor that may be kept as it is, in place of its stream or bits.

    Attributes:
      name: Of the tensor.
      more_bytes: That keeping it takes, while both would be alive.
      gain: What encoding and decoding it takes, in elements that pass a codec.
    """

    name: str
    more_bytes: int
    gain: float


class CompiledStep(NamedTuple):
    """What a step was found to take that keeps some tensors.

    Attributes:
      kept: Names of the tensors that it keeps.
      total_bytes: What it takes.
      at_peak: Names of the tensors that are alive at its peak, in the form in which it holds them.
    """

    kept: frozenset[str]
    total_bytes: int
    at_peak: frozenset[str]


Compile = Callable[[frozenset[str]], CompiledStep]


class KeptSearch:
    """Finds the tensors to keep.

    At its peak a step holds some tensors. Another step takes at least what that moment takes with other tensors kept:
    the steps that were compiled are lower bounds for all others, each exact at its own. The next step adds to the best
    one what saves the most time a byte, as far as the highest of these bounds is within the limit. Where bounds
    contradict a step that was compiled, their bytes of a tensor are corrected. After steps over the limit the next one
    is less bold: a straight line from the best step to one of those is an upper bound where totals are convex.

    Args:
      candidates: The tensors.
      limit: Bytes.
      compiled: Steps that are known: one that keeps nothing is among them.

    Attributes:
      compiled: Those, and what was compiled since.
    """

    def __init__(self, candidates: Sequence[KeepableTensor], limit: int, compiled: Iterable[CompiledStep]):
        self._candidates = sorted(candidates, key=lambda one: (-one.gain / max(one.more_bytes, 1), one.name))
        self._more = {one.name: float(one.more_bytes) for one in candidates}
        self._limit = limit
        self.compiled = list(compiled)

    def run(self, compile_step: Compile, most: int) -> None:
        """Compiles so many steps at most."""
        for _ in range(most):
            best = self.best()
            if best is None or best.total_bytes >= USED * self._limit or len(best.kept) == len(self._more):
                return
            kept = self._next(best)
            if kept is None:
                return
            self.compiled.append(compile_step(kept))

    def best(self) -> CompiledStep | None:
        """The step within the limit whose tensors save the most time; None where none is."""
        fitting = [step for step in self.compiled if step.total_bytes <= self._limit]
        gains = {one.name: one.gain for one in self._candidates}
        return max(fitting, key=lambda step: sum(gains[name] for name in step.kept), default=None)

    def _next(self, best: CompiledStep) -> frozenset[str] | None:
        """What to try; None where there is nothing left that could fit."""
        known = {step.kept for step in self.compiled}
        bounds = [_Bound(step, self._more, self.compiled) for step in self.compiled]
        costs = self._costs(best)
        for caution in dict.fromkeys((1 - _BOLDNESS ** self._overs(), 0.0)):
            kept = self._filled(bounds, best, costs, caution)
            if kept not in known and self._gains(kept, best):
                return kept
        room = self._limit - best.total_bytes
        left = (one for one in self._candidates if one.name not in best.kept and one.more_bytes <= room)
        single = (best.kept | {one.name} for one in left)  # by their own sizes, whatever the bounds say
        return next((kept for kept in single if kept not in known), None)

    def _overs(self) -> int:
        """Steps over the limit since the last one within it."""
        tried = (step for step in reversed(self.compiled) if len(step.kept) < len(self._more))
        return sum(1 for _ in itertools.takewhile(lambda step: step.total_bytes > self._limit, tried))

    def _gains(self, kept: frozenset[str], best: CompiledStep) -> bool:
        gains = {one.name: one.gain for one in self._candidates}
        return sum(gains[name] for name in kept) > sum(gains[name] for name in best.kept)

    def _costs(self, best: CompiledStep) -> dict[str, float]:
        """What keeping a tensor besides the best step's adds, on the straight lines to the steps over the limit."""
        costs = dict.fromkeys(best.kept, 0.0)
        for step in self.compiled:
            added = step.kept - best.kept
            if step.total_bytes > self._limit and added and len(step.kept) < len(self._more):
                slope = (step.total_bytes - best.total_bytes) / max(self._bytes(added), 1.0)
                for name in added:
                    costs[name] = min(costs.get(name, math.inf), slope * self._more[name])
        return {**self._more, **costs}

    def _bytes(self, names: Iterable[str]) -> float:
        return sum(self._more[name] for name in names)

    def _filled(
        self, bounds: Sequence[_Bound], best: CompiledStep, costs: Mapping[str, float], caution: float
    ) -> frozenset[str]:
        """The best step's tensors and others in their order, each where it fits by what is estimated."""
        goal = _GOAL * self._limit
        at = [bound.of(best.kept) for bound in bounds]
        line = float(best.total_bytes)
        kept = set(best.kept)
        for one in (one for one in self._candidates if one.name not in best.kept):
            levels = [level + bound.bytes_of(one.name) for level, bound in zip(at, bounds)]
            further = line + costs[one.name]
            level = max(levels)
            if (1 - caution) * level + caution * max(further, level) <= goal:
                at, line = levels, further
                kept.add(one.name)
        return frozenset(kept)


class _Bound:
    """What every step takes at least, by the peak of one.

    Args:
      step: That one.
      more: What keeping a tensor takes, by its name.
      compiled: Steps that it must not contradict.
    """

    def __init__(self, step: CompiledStep, more: Mapping[str, float], compiled: Sequence[CompiledStep]):
        self._step = step
        self._weights = {name: more[name] if name in step.at_peak else 0.0 for name in more}
        for _ in range(_PASSES):
            for other in compiled:
                self._agree(other, more)

    def bytes_of(self, name: str) -> float:
        """What keeping a tensor adds."""
        return self._weights[name]

    def of(self, kept: frozenset[str]) -> float:
        added = sum(self._weights[name] for name in kept - self._step.kept)
        return self._step.total_bytes + added - sum(self._weights[name] for name in self._step.kept - kept)

    def _agree(self, other: CompiledStep, more: Mapping[str, float]) -> None:
        """Corrects bytes of tensors so that another step's total is not below the bound."""
        above = self.of(other.kept) - other.total_bytes
        if above <= 0:
            return
        gone, added = self._step.kept - other.kept, other.kept - self._step.kept
        size = sum(more[name] for name in gone)
        if size > 0:
            for name in gone:
                self._weights[name] += above * more[name] / size
            return
        size = sum(self._weights[name] for name in added)
        for name in added:
            self._weights[name] *= max(1 - above / size, 0.0) if size else 0.0
