"""The error-bound law of `theory`, checked on the gradients of a compressed model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, theory
from tf_comptrain.codecs import State
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.compression.restored_state import state_restored
from tf_comptrain.graph import LawError, LawNumbers

_TOLERANCE = 0.25  # of the measured error: how far off the law may be and still be said to hold


class LawCheck(NamedTuple):
    """Law and measurement of one gradient of one batch: from x against from x_hat, same dy.

    Attributes:
      layer: Operation that makes the held tensor, and path of the weight.
      gradient: "kernel" of a convolution, dense layer or other product; "gamma" or "input" of a batch normalization.
      bound: Error bound of the held tensor, in units of x.
      bound_over_sigma: The same over the standard deviation of the input.
      nonzero_ratio: Non-zero elements / elements of the input.
      predicted_sigma: Root mean square of the gradient's error, by `theory.weight_gradient_sigma` or
        `theory.batch_norm_sigma`.
      measured_sigma: The same, measured.
      compression: float32 bytes of the input / bytes of its stream.
      gradient_rms: Root mean square of the gradient itself, from x.
      cosine: Of the angle between the gradients from x and from x_hat.
    """

    layer: str
    gradient: str
    bound: float
    bound_over_sigma: float
    nonzero_ratio: float
    predicted_sigma: float
    measured_sigma: float
    compression: float
    gradient_rms: float = 0.0
    cosine: float = 0.0

    @property
    def ratio(self) -> float:
        """Measured / predicted; 1 where the law holds."""
        return self.measured_sigma / self.predicted_sigma if self.predicted_sigma else math.nan

    @property
    def holds(self) -> bool:
        """Whether the prediction is within 25% of the measurement."""
        return abs(self.predicted_sigma - self.measured_sigma) <= _TOLERANCE * self.measured_sigma


def check_error_law(model: keras.Model, x: Any, y: Any) -> list[LawCheck]:
    """Compares the error-bound law with what compression does to the gradients of one batch.

    Traces and runs one training step; weights, statistics, slots and bounds are left as they were. For each tensor that
    the law speaks of, with the dy that reached the product: the gradient from what was restored minus the one from
    the tensor itself, against

        sigma = eb sqrt(R * mean_k sum dy_k^2 / 3)

    for a weight of whose gradient the tensor is a factor, and `theory.batch_norm_sigma` for the gamma and the
    input gradient of a batch normalization.

    Args:
      model: A compressed and compiled model, after some steps of training.
      x: One batch of inputs.
      y: Its targets.

    Returns:
      One `LawCheck` for each gradient of a weight that is one product with a held tensor, and two for each batch
      normalization whose input is held.

    Raises:
      ValueError: The model is not compressed, or not compiled.

    Examples:
      >>> ct.compress_model(model)
      >>> for check in ct.check_error_law(model, images[:64], labels[:64]):
      ...     print(check.layer, check.gradient, check.ratio)
    """
    held = instrumentation(model).held
    _keras.require_compiled(model)
    if held is None:
        return []
    x, y = tf.nest.map_structure(tf.convert_to_tensor, (x, y))
    _keras.build_for_step(model, x, y)
    with state_restored(model):
        with held.checked() as errors:
            step = _keras.trace_train_step(model, x, y, lambda: numbers_of(errors))
        numbers = step()
    return law_checks(errors, numbers)


def numbers_of(errors: list[LawError]) -> list[LawNumbers]:
    """What a step that is being traced is to return for `law_checks`; at the end of its trace.

    Args:
      errors: Of `HeldTensors.checked`; those of an earlier trace leave it: a step that makes variables is traced twice.
    """
    graph = tf.compat.v1.get_default_graph()
    errors[:] = [error for error in errors if error.numbers.error.graph is graph]
    return [error.numbers for error in errors]


def law_checks(errors: Sequence[LawError], numbers: Sequence[Sequence[Any]]) -> list[LawCheck]:
    """The checks that the numbers of a step make; see `HeldTensors.checked`.

    Args:
      errors: Gradients of the traced step that the law speaks of.
      numbers: Of each, what a run of the step found, in the order of `LawNumbers`.
    """
    return [
        check
        for error, values in zip(errors, numbers)
        for check in _checks_of(error, LawNumbers(*(np.asarray(value, np.float64) for value in values)))
    ]


def _checks_of(error: LawError, numbers: LawNumbers) -> list[LawCheck]:
    state = State(*numbers.state)
    bound, ratio, sigma = state.rms_bound, state.nonzero_ratio, state.sigma
    common: Any = {
        "layer": error.name,
        "bound": bound,
        "bound_over_sigma": bound / sigma if sigma else math.nan,
        "nonzero_ratio": ratio,
        "compression": float(numbers.plain_bytes) / max(state.stream_bytes, 1.0),
    }
    sum_sq = numbers.sum_sq
    if not error.is_normalization:
        predicted = float(theory.weight_gradient_sigma(bound, ratio, error.share * sum_sq.sum()))
        return [
            LawCheck(
                gradient="kernel",
                predicted_sigma=predicted,
                measured_sigma=float(numbers.error),
                gradient_rms=float(numbers.size),
                cosine=float(numbers.cosine),
                **common,
            )
        ]
    scales = np.asarray(numbers.sigma)
    bounds = bound * scales / _rms(scales) if error.by_channel else bound
    law = theory.batch_norm_sigma(
        bounds, sum_sq, numbers.mean_dy_norm, numbers.sigma, numbers.gamma, int(numbers.count), ratio
    )
    pairs = {
        "gamma": (law.gamma, numbers.error, numbers.size, numbers.cosine),
        "input": (
            np.hypot(law.direct, law.shift),
            numbers.input_error,
            numbers.input_size,
            numbers.input_cosine,
        ),
    }
    return [
        LawCheck(
            gradient=name,
            predicted_sigma=_rms(predicted),
            measured_sigma=float(measured),
            gradient_rms=float(size),
            cosine=float(cosine),
            **common,
        )
        for name, (predicted, measured, size, cosine) in pairs.items()
    ]


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean()))
