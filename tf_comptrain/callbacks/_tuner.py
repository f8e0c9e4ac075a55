"""The decisions of `AdaptiveBatchSize`, as pure steps over a state."""

from __future__ import annotations

import math
import statistics
import sys
from typing import NamedTuple

from tf_comptrain.callbacks._trend import FEWEST, Trend, are_worse, have_leapt, trend_of
from tf_comptrain.render.units import format_bytes

# The allocator wastes another part of itself at each size: smaller steps than this are within what a forecast
# is off by.
_WORTH_IT = 1.25

# The part of what a peak is below the highest by which that falls in each epoch: an eighth.
_FORGOTTEN = 8

_WINDOW = 12  # epochs that a trend is looked for in
_COMPARED = 5  # epochs before and behind a growth

# What a step needs with half the bounds / with these, at most: a bit more of about four, of all that it needs.
_HALVED = 1.3

# Error / gradient below which bounds need not be tighter: it adds 1 % to the variance of a gradient that is
# mostly noise, as it is for most of a training.
_MATTERS = 0.1
# Largest that bounds may be loosened to: 4 % (AC-GC's tolerance).
_LARGEST_ERROR = 0.2


class TunerLimits(NamedTuple):
    """The fixed part of the tuner; see the arguments of `AdaptiveBatchSize`.

    Batches are multiples of `multiple`, above that size. With `few_sizes` they are of two leading bits: 2, 3, 4, 6, 8,
    12, ... multiples, so that a training moves among few.
    """

    limit_bytes: int
    max_batch: int
    min_batch: int
    multiple: int = 8
    growth: float = 2.0
    margin: float = 0.05
    patience: int = 5
    min_bound_scale: float = 0.25
    hold: int = 1
    few_sizes: bool = False


class TunerState(NamedTuple):
    """What the tuner carries from epoch to epoch.

    Attributes:
      batch: Samples per batch.
      ceiling: Largest batch that is not given up: lowered where growth made the loss worse, a peak passed the limit,
        or memory ran out. `max_batch` is apart from it: another one may be given when a training goes on.
      epochs: Epochs at this batch.
      peak_bytes: The highest of these epochs, forgotten slowly.
      proven: Largest batch that went through an epoch within the limit, and has not passed it since; 0: none.
      grown_from: The sizes that it grew from, in order.
      bound_scale: Factor on all error bounds.
      tightest: Smallest factor that is not given up for memory.
      since: Epochs since batch and bounds were set.
      losses: Of the last epochs at this batch; only finite ones.
      before: Of the last epochs before the batch grew.
      last: Loss of the last epoch.
    """

    batch: int
    ceiling: int = sys.maxsize
    epochs: int = 0
    peak_bytes: int = 0
    proven: int = 0
    grown_from: tuple[int, ...] = ()
    bound_scale: float = 1.0
    tightest: float = 0.0
    since: int = 0
    losses: tuple[float, ...] = ()
    before: tuple[float, ...] = ()
    last: float = math.inf


Decided = tuple[TunerState, str, str]  # the state after, the action and its reason


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
    state: TunerState,
    policy: TunerLimits,
    loss: float,
    peak_bytes: int,
    resting_bytes: int,
    error: float | None = None,
) -> Decided:
    """One decision, from the loss and the peak of an epoch.

    Args:
      state: Before.
      policy: The fixed part.
      loss: Of the epoch that just ended.
      peak_bytes: Its peak, weights included.
      resting_bytes: Bytes in use between steps.
      error: Error / gradient by the error-bound law, at these bounds; None where nobody knows.

    Returns:
      The state after, the action ("grow", "undo", "lower", "tighten", "loosen" or "keep") and its reason.
    """
    finite = math.isfinite(loss)
    state = state._replace(
        losses=(*state.losses, loss)[-_WINDOW:] if finite else state.losses,
        last=loss if finite else state.last,
        epochs=state.epochs + 1,
        since=state.since + 1,
    )
    if peak_bytes > policy.limit_bytes:
        return retreat(state, policy, peak_bytes, resting_bytes, error)
    # The same step needs a sixth less in one epoch than in another, as the heap's holes happen to lie.
    highest = max(peak_bytes, state.peak_bytes - (state.peak_bytes - peak_bytes) // _FORGOTTEN)
    state = state._replace(proven=state.batch, peak_bytes=highest)
    if not finite:
        return _go_back(state, policy, f"loss {loss:.4g} is not finite", error)
    trend = trend_of(state.losses if len(state.losses) >= policy.patience else _recent(state))
    text = f"loss {loss:.4g} {trend}"
    if have_leapt(state.losses, state.before):
        return _go_back(state, policy, f"loss {loss:.4g} is far above those before the batch grew", error)
    worse = are_worse(state.losses[-_COMPARED:], state.before)
    if worse and (trend_of(state.losses).direction != "falling" or state.epochs >= 2 * policy.patience):
        return _go_back(state, policy, f"loss {loss:.4g} is worse than before the batch grew", error)
    waited = state.since >= policy.patience
    if waited and trend.direction in ("flat", "rising") and _may_tighten(state, policy, error):
        return _tightened(state, policy, text)
    if trend.direction == "rising":
        return state, "keep", text
    if _is_above(state):
        return state, "keep", f"{text}, above the losses before the batch grew"
    if state.epochs < policy.hold or not _may_grow(state, trend, waited):
        return state, "keep", f"{text}: epoch {state.epochs} of {policy.hold} at this size"
    return _grow(state, policy, resting_bytes, text)


def retreat(
    state: TunerState, policy: TunerLimits, peak_bytes: int, resting_bytes: int, error: float | None = None
) -> Decided:
    """What follows from a peak over the limit, at whichever step; arguments and result as for `decide`."""
    peak = f"over the limit: peak {_of_limit(peak_bytes, policy)}"
    doubled = 2.0 * state.bound_scale
    looser = doubled if _may_loosen(error) else min(doubled, 1.0)
    need = (peak_bytes - resting_bytes) * (1 - (1 - 1 / _HALVED) * math.log2(looser / state.bound_scale))
    if looser > state.bound_scale and need <= policy.limit_bytes - resting_bytes:
        return state._replace(bound_scale=looser, tightest=looser, since=0, peak_bytes=0), "loosen", peak
    proven = state.proven if state.proven < state.batch else 0
    fits = max(_fits(state, policy, peak_bytes, resting_bytes), proven)
    lower = _rounded(min(fits, state.batch - 1), policy)
    state = state._replace(proven=proven, ceiling=min(state.ceiling, _rounded(state.batch - 1, policy)))
    if lower < state.batch:
        return _at(state, lower), "lower", peak
    return state, "keep", f"{peak}, and `min_batch` is reached"


def _is_above(state: TunerState) -> bool:
    """Whether the last epochs are above all of those before the batch grew."""
    if len(state.before) < FEWEST or not state.losses:
        return False
    return statistics.median(state.losses[-_COMPARED:]) > max(state.before)


def _recent(state: TunerState) -> tuple[float, ...]:
    """The last epochs, those before the batch grew among them: of a short time at this size they say more."""
    return (*state.before, *state.losses)[-_COMPARED:]


def _may_grow(state: TunerState, trend: Trend, waited: bool) -> bool:
    """Whether it falls, or stands still: there a larger batch does what a lower learning rate does (Smith et al.)."""
    if trend.direction == "unknown":
        return state.since == state.epochs and state.losses[-1] <= state.losses[0]
    return trend.direction == "falling" or waited


def _may_tighten(state: TunerState, policy: TunerLimits, error: float | None) -> bool:
    smallest = max(policy.min_bound_scale, state.tightest)
    return state.bound_scale > smallest and (error is None or error > _MATTERS)


def _may_loosen(error: float | None) -> bool:
    return error is not None and 2.0 * error <= _LARGEST_ERROR


def _tightened(state: TunerState, policy: TunerLimits, reason: str) -> Decided:
    scale = max(state.bound_scale / 2.0, policy.min_bound_scale, state.tightest)
    return state._replace(bound_scale=scale, since=0), "tighten", reason


def _go_back(state: TunerState, policy: TunerLimits, reason: str, error: float | None) -> Decided:
    """To the size that the batch grew from. It never grew: the bounds alone can be too loose."""
    sizes = [size for size in state.grown_from if size < state.batch]
    if sizes:
        after = _at(state._replace(ceiling=sizes[-1], grown_from=tuple(sizes[:-1]), before=()), sizes[-1])
        return after, "undo", reason
    if _may_tighten(state, policy, error):
        return _tightened(state, policy, reason)
    return state, "keep", f"{reason}, and the batch is where training began"


def _of_limit(peak_bytes: int, policy: TunerLimits) -> str:
    return f"{format_bytes(peak_bytes)} of {format_bytes(policy.limit_bytes)}"


def _room(policy: TunerLimits, resting_bytes: int) -> float:
    return policy.limit_bytes * (1.0 - policy.margin) - resting_bytes


def _fits(state: TunerState, policy: TunerLimits, peak_bytes: int, resting_bytes: int) -> int:
    return fitting_batch(state.batch, peak_bytes - resting_bytes, _room(policy, resting_bytes))


def _at(state: TunerState, batch: int) -> TunerState:
    return state._replace(batch=batch, epochs=0, since=0, peak_bytes=0, losses=())


def _grow(state: TunerState, policy: TunerLimits, resting_bytes: int, trend: str) -> Decided:
    peak = f"peak {_of_limit(state.peak_bytes, policy)}"
    fits = _fits(state, policy, state.peak_bytes, resting_bytes)
    largest = min(policy.max_batch, state.ceiling)
    batch = min(largest, _rounded(min(fits, round(state.batch * policy.growth)), policy))
    if batch >= _WORTH_IT * state.batch or state.batch < batch == policy.max_batch:
        grown = _at(state, batch)._replace(
            grown_from=(*state.grown_from, state.batch), before=_recent(state)[-_COMPARED:]
        )
        return grown, "grow", f"{trend}, {peak}: room for {fits}"
    if state.batch >= largest:
        why = "`max_batch` is reached" if state.batch >= policy.max_batch else "larger batches were given up"
        need = _HALVED * (state.peak_bytes - resting_bytes)
        if _may_tighten(state, policy, None) and need <= _room(policy, resting_bytes):
            return _tightened(state, policy, f"{why}, and {peak} has room for tighter bounds")
        return state, "keep", f"{trend}, {why}"
    return state, "keep", f"{trend}, {peak}: room for {fits} only"


def _rounded(batch: int, policy: TunerLimits) -> int:
    """Down to a multiple, but not below the smallest."""
    unit = policy.multiple
    if policy.few_sizes:
        unit <<= max((batch // unit).bit_length() - 2, 0)
    if batch > unit:
        batch -= batch % unit
    return max(batch, policy.min_batch, 1)
