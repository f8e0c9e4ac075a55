"""Where a training's loss goes, told from the noise of its epochs by ranks alone.

Ranks know nothing of the loss' offset, sign and scale, and one epoch that lies far off counts as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# Of the trend. Four epochs, each lower than the one before, happen by chance one time in 24.
_SIGNIFICANCE = 0.05
# Of a comparison of epochs before and behind a change: four of each, all of them higher, one time in 70.
_WORSE = 0.02
# How often the losses' range before a change, which two epochs in a row are above all of them: they have leapt.
_LEAP = 2
FEWEST = 4  # epochs of which ranks say anything


class Trend(NamedTuple):
    """A loss over some epochs.

    Attributes:
      direction: "falling", "rising" or "flat"; "unknown" of fewer than four epochs.
      slope: Change an epoch: the median of the slopes of all pairs (Theil and Sen).
    """

    direction: str
    slope: float

    def __str__(self) -> str:
        if self.direction == "unknown":
            return "has too few epochs for a trend"
        if self.direction == "flat":
            return "stalls"
        return f"{'falls' if self.direction == 'falling' else 'rises'} by {abs(self.slope):.2g} an epoch"


def trend_of(losses: Sequence[float]) -> Trend:
    """Of the losses of epochs in order, all finite."""
    from scipy import stats  # takes half a second to import

    if len(losses) < FEWEST:
        return Trend("unknown", 0.0)
    found = stats.kendalltau(range(len(losses)), losses)
    if not math.isfinite(found.statistic):  # all are the same
        return Trend("flat", 0.0)
    slope = float(stats.theilslopes(losses).slope)
    if float(found.pvalue) / 2 > _SIGNIFICANCE:  # Mann and Kendall's test, one-sided
        return Trend("flat", slope)
    return Trend("falling" if found.statistic < 0 else "rising", slope)


def have_leapt(after: Sequence[float], before: Sequence[float]) -> bool:
    """Whether the last two losses are far above those before a change, by what these differ among each other."""
    if min(len(after), len(before)) < 2:
        return False
    highest = max(before)
    return min(after[-2:]) > highest + _LEAP * (highest - min(before))


def are_worse(after: Sequence[float], before: Sequence[float]) -> bool:
    """Whether losses are higher than those before a change (Mann and Whitney, one-sided)."""
    from scipy import stats

    if min(len(after), len(before)) < FEWEST:
        return False
    return float(stats.mannwhitneyu(after, before, alternative="greater").pvalue) < _WORSE
