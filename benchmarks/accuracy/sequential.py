"""When to stop, and what may be said then: repeated confidence intervals on a set schedule.

The differences to plain training come one a seed. They are looked at when there are 5, 10, 20, 30 and 45 of them, and
at no other time is anything decided. At look k the interval is Student's t at level 1 - alpha_k, with

    alpha = 0.002, 0.006, 0.018, 0.012, 0.012        (0.05 together).

By Bonferroni's inequality the intervals of all looks hold together with 95%, whatever the looks have to do with each
other, and wherever one stops. So a method that changes nothing is called different with at most 5% (3.7% where it never
stops before), and one that changes as much as the margin is called equivalent with at most 2.5%, since its interval
has to miss on one side. Most of alpha is left to 20 seeds and later. Boundaries computed for the correlation of looks
(Pocock: 0.016 at each of five) are 2% wider at 20 seeds than these, and 4% narrower at 45.

An arm that has stopped stays stopped: its verdict is that of its look, whatever seeds are there beside. Several arms
are not corrected for each other: each verdict has its own 5%.

Reference:
  Jennison and Turnbull, Group Sequential Methods (2000): chapter 9, repeated confidence intervals.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy import stats

EQUIVALENT, DIFFERENT, UNDECIDED = "equivalent", "different", "undecided"


class Look(NamedTuple):
    """When the differences are looked at, and the share of 5% that is spent on it."""

    seeds: int
    alpha: float


LOOKS = (Look(5, 0.002), Look(10, 0.006), Look(20, 0.018), Look(30, 0.012), Look(45, 0.012))


class Rule(NamedTuple):
    """What is asked of an arm.

    Attributes:
      margin: The interval has to lie inside +-margin, in units of the differences.
      fewest: Seeds before an arm may be called equivalent.
      looks: The schedule.
    """

    margin: float
    fewest: int
    looks: tuple[Look, ...] = LOOKS


class Verdict(NamedTuple):
    """What may be said of an arm.

    Attributes:
      word: "equivalent" (the interval is inside the margin, with 0 in it or not), "different" (it is not, and 0 is not
        in it), "undecided".
      seeds: Differences that the interval is made of.
      mean: Their mean.
      low: Lower end of the interval.
      high: Upper end of it; both infinite below two differences.
      alpha: The interval's level is 1 - alpha.
      final: No more seeds are wanted: it has stopped, or the last look is over.
    """

    word: str
    seeds: int
    mean: float
    low: float
    high: float
    alpha: float
    final: bool


def verdict(differences: Sequence[float], rule: Rule) -> Verdict:
    """What the rule says of these differences, in the order in which they came.

    Between looks the interval is of all differences that are there, at the level of the look that comes next; it
    decides nothing.
    """
    for look in rule.looks:
        if len(differences) < look.seeds:
            return _at(differences, look.alpha)
        found = _at(differences[: look.seeds], look.alpha)
        inside = -rule.margin < found.low and found.high < rule.margin
        if inside and look.seeds >= rule.fewest:
            return found._replace(word=EQUIVALENT, final=True)
        if not inside and not found.low <= 0 <= found.high:
            return found._replace(word=DIFFERENT, final=True)
    return found._replace(final=True)


def _at(differences: Sequence[float], alpha: float) -> Verdict:
    mean, half = interval(differences, alpha)
    return Verdict(UNDECIDED, len(differences), mean, mean - half, mean + half, alpha, False)


def interval(values: Sequence[float], alpha: float = 0.05) -> tuple[float, float]:
    """(mean, half width) of Student's t interval at level 1 - alpha; infinitely wide below two values."""
    if len(values) < 2:
        return (values[0] if values else 0.0), float("inf")
    return statistics.fmean(values), _quantile(len(values), alpha) * statistics.stdev(values) / len(
        values
    ) ** 0.5


@functools.cache
def _quantile(count: int, alpha: float) -> float:
    return float(stats.t.ppf(1 - alpha / 2, count - 1))


def next_look(seeds: int, rule: Rule) -> int:
    """How many seeds the next look needs; the last look's where it is over."""
    return next((look.seeds for look in rule.looks if look.seeds > seeds), rule.looks[-1].seeds)
