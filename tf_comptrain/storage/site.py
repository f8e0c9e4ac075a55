"""Sites: the places where tensors are held, each with its bound and its running statistics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.codecs import (
    LARGEST_BOUND,
    RANGE,
    RATES,
    SIGMA,
    SMALLEST_BOUND,
    Codec,
    ErrorBound,
    FixedRateCodec,
    State,
    scales_rows,
)

# Bound / sigma by what reads the stored tensor. A weight gradient averages the error out, and the
# error stays in that layer; a convolution's averages over positions too. Through a nonlinear
# function it travels upstream: tighter.
DEFAULT_BOUNDS = {
    "linear": ErrorBound(0.1),
    "convolution": ErrorBound(0.2),
    "norm": ErrorBound(0.25),
    "nonlinear": ErrorBound(0.02),
}

# Under XLA, where the values of a group have a scale of their own. The largest of a group, in sigma: of normal values,
# and of a ReLU's output, whose sigma is that of its zeros too. How far a group's bound may be above the site's then.
_LARGEST, _LARGEST_OF_RELU = 2.3, 3.1
_WIDENING = 2.5

_USUAL_BOUND = 0.1  # sigma, for predictions where a bound is absolute and no tensor has been seen
_USUAL_RANGE = 8.0  # sigma


# Numbers that a collecting step writes for the error-bound law.
STATISTICS = 7


class Site:
    """One place in a model where a tensor is held, with its bound and statistics.

    It alone writes the absolute bound that the op reads: base x scale. The base is the bound that the site was made
    with, at the scale of the last tensors where that is relative, or what `set_bound` has put in its place.

    Args:
      name: "layer/role", for reports.
      codec: How tensors are encoded here.
      bound: Error bound; None for the default of `kind`.
      kind: What reads the tensor: "linear", "convolution", "norm" or "nonlinear".
      state: Where its `State` is kept: has `numpy()` and `assign(values)`, and begins with zeros. None: in a
        variable of its own.

    Attributes:
      base: What `set_bound` has set; None where the base is the site's own.
      scale: Factor on the base.
      bits: Of a value under XLA, when the model was last traced; None elsewhere.
      statistics: Of a wrapper's site: the variable of its `LawSite`; None until `collect`.
      collecting: As `collect` was given it.
    """

    def __init__(
        self,
        name: str,
        codec: Codec,
        bound: ErrorBound | None,
        kind: str,
        state: Any = None,
    ):
        self.name = name
        self.codec = codec
        self.bound = bound or DEFAULT_BOUNDS[kind]
        self.kind = kind
        self.base: float | None = None
        self.scale = 1.0
        start = State(bound_set=0.0 if self.bound.relative else self.bound.value)
        if state is None:
            state = variable(start, f"{name}/codec_state")
        elif start.bound_set:
            with tf.init_scope():
                if not _keras.mean_of_replicas(state).any():  # else a restored training's
                    state.assign(start)
        self.state = state
        self.bits: float | None = None
        self._mid_rise = False  # of the codes that `bits` is of
        self.statistics: tf.Variable | None = None
        self.collecting: tf.Variable | None = None

    def collect(self, enabled: tf.Variable) -> None:
        """From the next trace on, steps collect what the error-bound law needs wherever `enabled` is True."""
        self.collecting = enabled
        self.statistics = variable([0.0] * STATISTICS, f"{self.name}/gradient_statistics")

    @property
    def relative_bound(self) -> float:
        return self.bound.value if self.bound.relative else DEFAULT_BOUNDS[self.kind].value

    @property
    def is_by_channel(self) -> bool:
        """Whether each channel's bound is in proportion to its own scale."""
        return self.bound.reference == SIGMA and not self.codec.is_lossless

    def own_bound(self) -> float:
        """The absolute bound that the site was made with, at the scale of the last tensors."""
        if not self.bound.relative:
            return self.bound.value
        state = self.read_state()
        return self.bound.value * (state.range if self.bound.relative_to == RANGE else state.running_sigma)

    def rate(self, mid_rise: bool) -> int:
        """Bits that a value takes under XLA, by the bound as it is when the step is traced."""
        return FixedRateCodec.rate_for(self._bound_of_largest(mid_rise) or 0.0, mid_rise)

    def is_too_fine(self, mid_rise: bool) -> bool:
        """Whether XLA has no codes for the bound as it is when the step is traced, as far as that is known."""
        bound = self._bound_of_largest(mid_rise)
        return bound is not None and not FixedRateCodec.holds(bound, RATES[-1], mid_rise)

    def _bound_of_largest(self, mid_rise: bool) -> float | None:
        """That of a group's largest value, over that value; None where only a step will tell."""
        with tf.init_scope():
            state = self.read_state()
        if not state.bound_set and self.bound.relative_to == RANGE:
            return _WIDENING * self.relative_bound
        bound = self.relative_bound
        if state.bound_set:
            if state.running_sigma <= 0:
                return None
            bound = state.bound_set / state.running_sigma
        return _WIDENING * bound / (_LARGEST_OF_RELU if mid_rise else _LARGEST)

    def scales_rows(self, x: tf.Tensor, xla: bool) -> bool:
        """Whether rows of a tensor that are much longer or shorter than the others have a scale each.

        Args:
          x: What is encoded.
          xla: Whether XLA compiles the graph being built.
        """
        # What a convolution reads has had all of a sample normalized, or nothing.
        return self.kind != "convolution" and scales_rows(x, self.codec, self.bound, xla)

    def coder(self, mid_rise: bool, xla: bool, statistics: bool = False) -> Codec:
        """What encodes here: under XLA, the fixed-rate codec at this site's rate.

        Args:
          mid_rise: As for `Codec.compress`.
          xla: Whether XLA compiles the graph being built.
          statistics: Whether the error-bound law is asked about this step, which reads `State.rms_bound`.
        """
        if not xla:
            return self.codec
        codec = FixedRateCodec(self.rate(mid_rise), statistics)
        self.bits, self._mid_rise = codec.stream_bits, mid_rise
        return codec

    def bits_if_traced_now(self) -> float | None:
        """What `bits` would be by the bound as it is now; None where bits follow the bound without a trace."""
        return None if self.bits is None else FixedRateCodec(self.rate(self._mid_rise)).stream_bits

    def predicted_bits(self, density: float, rows: int) -> float:
        """What a value takes in a stream, predicted by the bound as it is now; see `Codec.predicted_bits`.

        Args:
          density: Share of the values that are not zero, before a tensor has been seen.
          rows: Values of a channel, which has a byte of its own in the stream.
        """
        if self.bits is not None:  # every value takes them
            return self.bits
        with tf.init_scope():
            state = self.read_state()
        of_channel = 8 / rows if self.is_by_channel else 0.0
        bound = self._bound_in_sigma(state)
        return self.codec.predicted_bits(bound, state.nonzero_ratio or density) + of_channel

    def _bound_in_sigma(self, state: State) -> float:
        bound = state.bound_set
        if not bound and self.bound.relative_to == RANGE:
            return self.bound.value * (
                state.range / state.sigma if state.range and state.sigma else _USUAL_RANGE
            )
        if not bound:
            return self.bound.value
        return bound / state.running_sigma if state.running_sigma > 0 else _USUAL_BOUND

    def read_state(self) -> State:
        """The state after the last step, as numbers."""
        return State(*(float(v) for v in _keras.mean_of_replicas(self.state)))

    def set_bound(self, base: float) -> float:
        """Sets the base from the next step on; 0 returns to the site's own. No retracing.

        Returns:
          The bound: base x scale, within what a bound may be; 0 where it is relative.
        """
        self.base = ErrorBound.parse(base, "base").value if base else None
        return self._write_bound()

    def scale_bound(self, scale: float) -> None:
        """Sets the factor on the base from the next step on. A base that is relative is taken as it is now."""
        self.scale = scale
        self._write_bound()

    def reset_bound(self) -> None:
        """Returns to the bound that the site was made with."""
        self.base, self.scale = None, 1.0
        self._write_bound()

    def adopt_bound(self, scale: float, bases: Mapping[str, float] | None) -> None:
        """Takes over who has set the bound that a restored state brings.

        Args:
          scale: The factor on all bounds.
          bases: By name of a site what was set; None where that is not known: any bound counts as set then.
        """
        self.scale = scale
        if bases is not None:
            self.base = bases.get(self.name)
        else:
            with tf.init_scope():
                self.base = self.read_state().bound_set / scale or None

    def _write_bound(self) -> float:
        if self.base is None and self.bound.relative:
            bound = 0.0 if self.scale == 1.0 else self.scale * self.own_bound()
        else:
            bound = self.scale * (self.base or self.bound.value)
        if bound:
            bound = min(max(bound, SMALLEST_BOUND), LARGEST_BOUND)
        values = _keras.mean_of_replicas(self.state)
        values[State._fields.index("bound_set")] = bound
        self.state.assign(values)
        return bound


class LawSite(NamedTuple):
    """A stored tensor that the gradient of a weight is made of, whose error the error-bound law predicts.

    Attributes:
      name: Path of the layer; of a tensor of the traced step its own name and the path of the weight.
      site: Where the tensor is held.
      share: Sum of dy^2 behind one element of the gradient / mean over the channels of sum dy_k^2.
      weight: The variable; None where it does not train.
      statistics: Has `numpy()`, `STATISTICS` numbers: of dy and of the gradient of the weight three each, mean over
        channels of the sum of squares, mean magnitude, elements that are not finite; then the elements of the tensor.
      alone: Nothing else is made of the tensor that the law does not speak of.
    """

    name: str
    site: Site
    share: float
    weight: Any
    statistics: Any
    alone: bool = True


def variable(values: Any, name: str) -> tf.Variable:
    """A float32 variable of the codecs' own, which each replica of a strategy writes for itself."""
    # ON_READ: each replica writes its own copy inside the step; reading outside averages them.
    return tf.Variable(
        values,
        dtype=tf.float32,
        trainable=False,
        name=name.replace(" ", "_"),
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.MEAN,
    )


def name_of(tensor: tf.Tensor) -> str:
    """What a tensor of a step is called: the same in every replica and from trace to trace."""
    name = re.sub(r"(^|/)replica_\d+/", r"\1", tensor.op.name)
    return f"{name}:{tensor.value_index}" if tensor.value_index else name
