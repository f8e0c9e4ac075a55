"""The decisions of `AdaptiveBatchSize`, as pure steps over a state."""

from __future__ import annotations

import math
from typing import NamedTuple

from tf_comptrain.report import format_bytes

_APART = 1.5  # batch / batch, for two peaks to tell a slope
_WORTH_IT = 1.1  # smaller steps than this only unsettle the training


class Policy(NamedTuple):
    """The fixed part of the tuner; see the arguments of `AdaptiveBatchSize`.

    Batches are multiples of `multiple`, above that size.
    """

    memory_limit: int
    max_batch: int
    min_batch: int
    multiple: int = 8
    growth: float = 2.0
    margin: float = 0.05
    patience: int = 2
    min_delta: float = 0.01
    min_bound_scale: float = 0.25


class TunerState(NamedTuple):
    """What the tuner carries from epoch to epoch.

    Attributes:
      batch: Samples per batch.
      ceiling: Largest batch it may grow to: lowered where the loss got stuck.
      bound_scale: Factor on all error bounds.
      best: Lowest loss so far.
      last: Loss of the last epoch.
      stalled: Epochs in a row without a new best loss.
      peaks: (batch, peak over the resting level in bytes), one entry per batch size seen.
    """

    batch: int
    ceiling: int
    bound_scale: float = 1.0
    best: float = math.inf
    last: float = math.inf
    stalled: int = 0
    peaks: tuple[tuple[int, int], ...] = ()


def fitting_batch(peaks: tuple[tuple[int, int], ...], room_bytes: float) -> int:
    """The largest batch whose peak over the resting level fits into `room_bytes`.

    Peaks are taken to be a + b * batch, through the smallest and the largest batch seen. Where those
    are less than half apart, the scatter of peaks would make that slope meaningless: a is taken to
    be 0 then, which overstates the bytes per sample.
    """
    (small, low), (large, high) = min(peaks), max(peaks)
    slope = (high - low) / (large - small) if large >= _APART * small else 0.0
    if slope <= 0:
        small, low, slope = 0, 0, high / large
    if slope <= 0:  # too small to be counted
        return 2 * large
    return max(int(small + (room_bytes - low) / slope), 0)


def decide(
    state: TunerState, policy: Policy, loss: float, peak_bytes: int, resting_bytes: int
) -> tuple[TunerState, str, str]:
    """One decision, from the loss and the peak of an epoch.

    Args:
      state: Before.
      policy: The fixed part.
      loss: Of the epoch that just ended.
      peak_bytes: Its peak, weights included.
      resting_bytes: Bytes in use between steps.

    Returns:
      The state after, the action and its reason.
    """
    peaks = dict(state.peaks)
    peaks[state.batch] = max(peaks.get(state.batch, 0), peak_bytes - resting_bytes)
    room = policy.memory_limit * (1.0 - policy.margin) - resting_bytes
    fits = fitting_batch(tuple(sorted(peaks.items())), room)

    improved = loss < state.best - policy.min_delta * abs(state.best) if math.isfinite(state.best) else True
    improved = improved and math.isfinite(loss)
    rising = not math.isfinite(loss) or loss > state.last + policy.min_delta * abs(state.last)
    state = state._replace(
        peaks=tuple(sorted(peaks.items())),
        best=min(state.best, loss) if math.isfinite(loss) else state.best,
        last=loss if math.isfinite(loss) else state.last,
        stalled=0 if improved else state.stalled + 1,
    )
    peak = f"peak {format_bytes(peak_bytes)} of {format_bytes(policy.memory_limit)}"

    if peak_bytes > policy.memory_limit:
        lower = _rounded(min(fits, state.batch - 1), policy)
        if lower < state.batch:
            return state._replace(batch=lower), "lower", f"over the limit: {peak}"
        return state, "keep", f"over the limit ({peak}), and `min_batch` is reached"
    if improved:
        return _grow(state, policy, fits, f"loss {loss:.4g} improves", peak)
    if rising or state.stalled >= policy.patience:
        return _back_off(state, policy, f"loss {loss:.4g} {'rises' if rising else 'stalls'}")
    return state, "keep", f"loss {loss:.4g} has not improved, {peak}"


def _grow(state: TunerState, policy: Policy, fits: int, trend: str, peak: str) -> tuple[TunerState, str, str]:
    largest = min(policy.max_batch, state.ceiling)
    batch = min(largest, _rounded(min(fits, round(state.batch * policy.growth)), policy))
    if batch >= _WORTH_IT * state.batch or state.batch < batch == largest:
        return state._replace(batch=batch), "grow", f"{trend}, {peak}: room for {fits}"
    if state.batch >= policy.max_batch:
        return state, "keep", f"{trend}, `max_batch` is reached"
    if state.batch >= state.ceiling:
        return state, "keep", f"{trend}, but larger batches were given up before"
    return state, "keep", f"{trend}, {peak}: room for {fits} only"


def _back_off(state: TunerState, policy: Policy, trend: str) -> tuple[TunerState, str, str]:
    state = state._replace(stalled=0)
    if state.bound_scale > policy.min_bound_scale:
        scale = max(state.bound_scale / 2.0, policy.min_bound_scale)
        return state._replace(bound_scale=scale), "tighten", trend
    lower = max(_rounded(int(state.batch / policy.growth), policy), policy.min_batch)
    if lower < state.batch:
        return state._replace(batch=lower, ceiling=lower), "lower", f"{trend} at the tightest bounds"
    return state, "keep", f"{trend}, and bounds and batch are at their smallest"


def _rounded(batch: int, policy: Policy) -> int:
    """Down to a multiple, but not below the smallest."""
    if batch > policy.multiple:
        batch -= batch % policy.multiple
    return max(batch, policy.min_batch, 1)
