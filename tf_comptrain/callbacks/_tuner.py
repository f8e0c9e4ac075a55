"""The decisions of `AdaptiveBatchSize`, as pure steps over a state."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

from tf_comptrain.render.units import format_bytes

# The allocator wastes another part of itself at each size: smaller steps than this are within what a forecast
# is off by.
_WORTH_IT = 1.25

# The part of what a peak is below the highest by which that falls in each epoch: an eighth.
_FORGOTTEN = 8


class TunerLimits(NamedTuple):
    """The fixed part of the tuner; see the arguments of `AdaptiveBatchSize`.

    Batches are multiples of `multiple`, above that size.
    """

    limit_bytes: int
    max_batch: int
    min_batch: int
    multiple: int = 8
    growth: float = 2.0
    margin: float = 0.05
    patience: int = 2
    min_delta: float = 0.01
    min_bound_scale: float = 0.25
    hold: int = 1


class TunerState(NamedTuple):
    """What the tuner carries from epoch to epoch.

    Attributes:
      batch: Samples per batch.
      ceiling: Largest batch that is not given up: lowered where the loss got stuck, a peak passed the limit, or
        memory ran out. `max_batch` is apart from it: another one may be given when a training goes on.
      epochs: Epochs at this batch.
      peak_bytes: The highest of these epochs, forgotten slowly.
      proven: Largest batch that went through an epoch within the limit, and has not passed it since; 0: none.
      bound_scale: Factor on all error bounds.
      best: Lowest loss so far.
      last: Loss of the last epoch.
      stalled: Epochs in a row without a new best loss.
    """

    batch: int
    ceiling: int = sys.maxsize
    epochs: int = 0
    peak_bytes: int = 0
    proven: int = 0
    bound_scale: float = 1.0
    best: float = math.inf
    last: float = math.inf
    stalled: int = 0


def fitting_batch(batch: int, need_bytes: float, room_bytes: float) -> int:
    """The batch that would fit into `room_bytes` if all that `batch` needs were in proportion to it.

    A part of the need that does not grow makes this too small, and from epoch to epoch less so. A line
    through the needs of two batch sizes would know that part, if it were not for the bounds: they
    are tighter in the first epoch, whose need is too large for such a line, which then promises too much.
    """
    if need_bytes <= 0:  # too small to be counted
        return 2 * batch
    return max(int(batch * room_bytes / need_bytes), 0)


def decide(
    state: TunerState, policy: TunerLimits, loss: float, peak_bytes: int, resting_bytes: int
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
    improved = loss < state.best - policy.min_delta * abs(state.best) if math.isfinite(state.best) else True
    improved = improved and math.isfinite(loss)
    rising = not math.isfinite(loss) or loss > state.last + policy.min_delta * abs(state.last)
    state = state._replace(
        best=min(state.best, loss) if math.isfinite(loss) else state.best,
        last=loss if math.isfinite(loss) else state.last,
        stalled=0 if improved else state.stalled + 1,
        epochs=state.epochs + 1,
    )
    peak = f"peak {format_bytes(peak_bytes)} of {format_bytes(policy.limit_bytes)}"

    if peak_bytes > policy.limit_bytes:
        return retreat(state, policy, peak_bytes, resting_bytes)
    # The same step needs a sixth less in one epoch than in another, as the heap's holes happen to lie.
    highest = max(peak_bytes, state.peak_bytes - (state.peak_bytes - peak_bytes) // _FORGOTTEN)
    state = state._replace(proven=state.batch, peak_bytes=highest)
    if improved:
        trend = f"loss {loss:.4g} improves"
        if state.epochs < policy.hold:
            return state, "keep", f"{trend}, {peak}: epoch {state.epochs} of {policy.hold} at this size"
        return _grow(state, policy, _fits(state, policy, highest, resting_bytes), trend, peak)
    if rising or state.stalled >= policy.patience:
        trend = ("rises" if rising else "stalls") if math.isfinite(loss) else "is not finite"
        return _back_off(state, policy, f"loss {loss:.4g} {trend}")
    return state, "keep", f"loss {loss:.4g} has not improved, {peak}"


def retreat(
    state: TunerState, policy: TunerLimits, peak_bytes: int, resting_bytes: int
) -> tuple[TunerState, str, str]:
    """What follows from a peak over the limit, at whichever step; arguments and result as for `decide`."""
    peak = f"peak {format_bytes(peak_bytes)} of {format_bytes(policy.limit_bytes)}"
    proven = state.proven if state.proven < state.batch else 0
    fits = max(_fits(state, policy, peak_bytes, resting_bytes), proven)
    lower = _rounded(min(fits, state.batch - 1), policy)
    state = state._replace(proven=proven, ceiling=min(state.ceiling, _rounded(state.batch - 1, policy)))
    if lower < state.batch:
        return _at(state, lower), "lower", f"over the limit: {peak}"
    return state, "keep", f"over the limit ({peak}), and `min_batch` is reached"


def _fits(state: TunerState, policy: TunerLimits, peak_bytes: int, resting_bytes: int) -> int:
    room = policy.limit_bytes * (1.0 - policy.margin) - resting_bytes
    return fitting_batch(state.batch, peak_bytes - resting_bytes, room)


def _at(state: TunerState, batch: int) -> TunerState:
    return state._replace(batch=batch, epochs=0, peak_bytes=0)


def _grow(
    state: TunerState, policy: TunerLimits, fits: int, trend: str, peak: str
) -> tuple[TunerState, str, str]:
    largest = min(policy.max_batch, state.ceiling)
    batch = min(largest, _rounded(min(fits, round(state.batch * policy.growth)), policy))
    if batch >= _WORTH_IT * state.batch or state.batch < batch == policy.max_batch:
        return _at(state, batch), "grow", f"{trend}, {peak}: room for {fits}"
    if state.batch >= policy.max_batch:
        return state, "keep", f"{trend}, `max_batch` is reached"
    if state.batch >= state.ceiling:
        return state, "keep", f"{trend}, but larger batches were given up before"
    return state, "keep", f"{trend}, {peak}: room for {fits} only"


def _back_off(state: TunerState, policy: TunerLimits, trend: str) -> tuple[TunerState, str, str]:
    state = state._replace(stalled=0)
    if state.bound_scale > policy.min_bound_scale:
        scale = max(state.bound_scale / 2.0, policy.min_bound_scale)
        return state._replace(bound_scale=scale), "tighten", trend
    lower = max(_rounded(int(state.batch / policy.growth), policy), policy.min_batch)
    if lower < state.batch:
        return _at(state._replace(ceiling=lower), lower), "lower", f"{trend} at the tightest bounds"
    return state, "keep", f"{trend}, and bounds and batch are at their smallest"


def _rounded(batch: int, policy: TunerLimits) -> int:
    """Down to a multiple, but not below the smallest."""
    if batch > policy.multiple:
        batch -= batch % policy.multiple
    return max(batch, policy.min_batch, 1)
