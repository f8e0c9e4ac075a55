"""Error bounds, and what the streams of a tensor carry from step to step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tf_comptrain import arguments

SIGMA = "sigma"  # what a relative bound is relative to
RANGE = "range"
NOTHING = "nothing"  # of an absolute bound, for the ops

# Of a bound: what is restored must be a normal float32 number, for TensorFlow flushes others to zero, and
# finite. cc/codec/stream/bound.h has the same.
SMALLEST_BOUND, LARGEST_BOUND = 1e-30, 2.0**120


_EXPONENTS, _CENTRES = 8, 16  # flags of a stream's header


class State(NamedTuple):
    """What a compress op reads and writes at each step, as the elements of a float32 vector.

    Attributes:
      bound_set: Absolute error bound chosen by the user or a callback; 0: relative to sigma.
      bound_used: Absolute bound of the last stream: of a channel whose scale is that of the tensor.
      running_sigma: Exponential average of `sigma` over steps, each of which counts as ten times the average
        at most; 0 before the first.
      nonzero_ratio: Non-zero elements / elements of the last tensor. Under XLA 1 where zeros do not come back exactly.
      sigma: Root of the mean variance of the channels of the last tensor, each about its own mean, zeros included.
        From a sample of at least 4,096 values.
      stream_bytes: Size of the last stream.
      range: Largest less smallest finite value of the last tensor, where bounds are relative to it.
      widened: Under XLA: share of the groups of values of the last tensor whose bound had to be above `bound_used`.
        Like `rms_bound` only of steps that collect or check what the error-bound law reads; others leave it as it was.
      rms_bound: Root of the mean square of the bounds of all channels, by their values that are not zero; under XLA
        of all groups of values.
      steps: Tensors that were encoded, modulo 2^24: with each the dither begins elsewhere.
    """

    bound_set: float = 0.0
    bound_used: float = 0.0
    running_sigma: float = 0.0
    nonzero_ratio: float = 0.0
    sigma: float = 0.0
    stream_bytes: float = 0.0
    range: float = 0.0
    widened: float = 0.0
    rms_bound: float = 0.0
    steps: float = 0.0


def channel_bounds(stream: np.ndarray, bound: float) -> np.ndarray:
    """The bound that each channel of a stream of plane or rans holds, as docs/codec-format.md has it.

    Args:
      stream: uint8, the stream.
      bound: `State.bound_used` of it.

    Returns:
      float64 [channels]: in rows that have no scale of their own.
    """
    header = np.asarray(stream[:64], np.uint8).tobytes()
    flags, channels = header[7], int.from_bytes(header[16:20], "little")
    if not flags & _EXPONENTS:
        return np.full(channels, float(bound))
    words = -(-channels // 4), -(-channels // 2) if flags & _CENTRES else 0
    end = int.from_bytes(header[32:40], "little")  # scales of rows may follow
    start = end - 4 * sum(words)
    exponents = np.asarray(stream[start : start + channels], np.uint8).view(np.int8)
    return float(bound) * np.exp2(exponents.astype(np.float64))


class _ErrorBoundFields(NamedTuple):
    value: float
    relative: bool = True
    relative_to: str = SIGMA


class ErrorBound(_ErrorBoundFields):
    """How far a restored value may be from the stored one: |x - x_hat| <= bound.

    Attributes:
      value: The bound itself, in units of x; or, if relative, its ratio to `relative_to`.
        From 1e-30 to 1.3e36: beyond, restored values would not be normal float32 numbers. A relative bound
        that comes out smaller or larger, of a constant tensor or a diverging one, is that limit.
      relative: See `value`.
      relative_to: "sigma" or "range".

        "sigma": the standard deviation of each channel (last axis) about its own mean. With sigma(x) the root of the
        mean variance of all channels, the bound of the tensor is value * sigma_t:

            sigma_t = 0.9 sigma_(t-1) + 0.1 min(sigma(x_(t-1)), 10 sigma_(t-1)),    sigma_0 = sigma(x_0)

        A channel's bound is that times the power of two next to s_c / s, and never more: s_c^2 is its variance over its
        share of values that are not zero, s^2 the mean of these. All are those of a sample of the tensor. A tensor of
        fewer than 4 rows has one bound. Under XLA groups of values of one channel have steps of their own instead.

        "range": the largest less the smallest finite value of this very tensor, for all channels alike. It takes one
        more pass over the tensor.

    Raises:
      TypeError: A field of another type than it says.
      ValueError: Not between 1e-30 and 2^120; an unknown `relative_to`.
    """

    __slots__ = ()

    def __new__(cls, value: float, relative: bool = True, relative_to: str = SIGMA) -> ErrorBound:
        bound = super().__new__(cls, value, relative, relative_to)
        _check(bound, "ErrorBound")
        return bound

    @property
    def reference(self) -> str:
        """What the ops are to take it relative to: "sigma", "range" or "nothing"."""
        return self.relative_to if self.relative else NOTHING

    @staticmethod
    def parse(bound: float | ErrorBound, argument: str = "error_bound") -> ErrorBound:
        """A number is an absolute bound.

        Raises:
          TypeError: Neither a number nor an ErrorBound; a field of another type than it says.
          ValueError: Not between 1e-30 and 2^120; an unknown `relative_to`.
        """
        if not isinstance(bound, ErrorBound):
            if not arguments.is_real(bound):
                raise TypeError(
                    f"`{argument}` must be a positive number (absolute bound), a "
                    f"tf_comptrain.ErrorBound or None. Received: {bound!r} (of type {type(bound).__name__})."
                )
            _check(_ErrorBoundFields(bound, False), argument)
            return ErrorBound(float(bound), relative=False)
        _check(bound, argument)  # `_replace` checks nothing
        return bound

    def __str__(self) -> str:
        return f"{self.value:g} {self.relative_to}" if self.relative else f"{self.value:g}"


def _check(bound: _ErrorBoundFields, argument: str) -> None:
    if not arguments.is_real(bound.value):
        raise TypeError(
            f"`{argument}.value` must be a number. "
            f"Received: {bound.value!r} (of type {type(bound.value).__name__})."
        )
    if not isinstance(bound.relative, (bool, np.bool_)):
        raise TypeError(
            f"`{argument}.relative` must be True or False. "
            f"Received: {bound.relative!r} (of type {type(bound.relative).__name__})."
        )
    if not SMALLEST_BOUND <= bound.value <= LARGEST_BOUND:
        raise ValueError(
            f"`{argument}` must be a number between {SMALLEST_BOUND:.3g} and {LARGEST_BOUND:.3g}. "
            f"Received: {bound.value!r}. For lossless storage use storage='keep'."
        )
    if not isinstance(bound.relative_to, str) or bound.relative_to not in (SIGMA, RANGE):
        raise ValueError(
            f"`{argument}.relative_to` must be 'sigma' or 'range'. Received: {bound.relative_to!r}."
        )
