"""The error-bound law of `theory`, applied to the layers of a compressed model and checked on them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, theory
from tf_comptrain.memory.state import state_restored
from tf_comptrain.model import Instrumentation, instrumentation
from tf_comptrain.rules.linear import linear_part
from tf_comptrain.storage import LawSite, Site

_TOLERANCE = 0.25  # of the measured error: how far off the law may be and still be said to hold


class LawCheck(NamedTuple):
    """Law and measurement of one gradient of one batch: from x against from x_hat, same dy.

    Attributes:
      layer: Path of the layer.
      gradient: "kernel" of a convolution or dense layer; "gamma" or "input" of a batch normalization.
      bound: Error bound of the layer's input, in units of x.
      bound_over_sigma: The same over the standard deviation of the input.
      nonzero_ratio: Non-zero elements / elements of the input.
      predicted_sigma: Root mean square of the gradient's error, by `theory.weight_gradient_sigma` or
        `theory.batch_norm_sigma`.
      measured_sigma: The same, measured.
      compression: float32 bytes of the input / bytes of its stream.
    """

    layer: str
    gradient: str
    bound: float
    bound_over_sigma: float
    nonzero_ratio: float
    predicted_sigma: float
    measured_sigma: float
    compression: float

    @property
    def ratio(self) -> float:
        """Measured / predicted; 1 where the law holds."""
        return self.measured_sigma / self.predicted_sigma if self.predicted_sigma else math.nan

    @property
    def holds(self) -> bool:
        """Whether the prediction is within 25% of the measurement."""
        return abs(self.predicted_sigma - self.measured_sigma) <= _TOLERANCE * self.measured_sigma


def law_sites(instruments: Instrumentation) -> list[LawSite]:
    """Where the law speaks of a compressed model: its layers, in order, and what its traced steps hold besides."""
    held = instruments.held
    return [*(law for _, law in _laws_of_layers(instruments)), *(held.law_sites() if held else ())]


def _laws_of_layers(instruments: Instrumentation) -> list[tuple[keras.layers.Layer, LawSite]]:
    found = []
    for layer, instrument in instruments.all_instruments().items():
        for site in instrument.context.sites.values():
            share = _share(layer) if site.kind == "linear" else 1.0 if site.kind == "norm" else None
            if share is not None:
                law = LawSite(instrument.path, site, share, _weight(layer, site), site.statistics)
                found.append((layer, law))
    return found


def _weight(layer: keras.layers.Layer, site: Site) -> Any:
    """A layer's kernel or a batch normalization's gamma; None where that does not train, or there is none."""
    weights = layer.trainable_weights
    if site.kind == "norm":
        gamma = layer.gamma if layer.scale else None
        return gamma if any(gamma is weight for weight in weights) else None
    return next((weight for weight in weights if len(weight.shape) > 1), None)


def _share(layer: keras.layers.Layer) -> float | None:
    """LawSite.share, from the layer's configuration; None where the law does not apply.

    One channel of dy meets each weight once per position in convolutions and dense layers. A
    transposed convolution meets it at one of `strides` positions; a dense layer by an einsum
    may have more output channels than its last dimension shows.
    """
    name = type(layer).__name__
    if name.startswith("Separable") or getattr(layer, "data_format", None) == "channels_first":
        return None
    if name.endswith("Transpose"):
        return 1.0 / math.prod(layer.strides)
    if isinstance(layer, keras.layers.EinsumDense):
        return _einsum_share(layer.equation, tuple(layer.kernel.shape)) if layer.built else None
    return 1.0


def _einsum_share(equation: str, kernel_shape: tuple[int, ...]) -> float | None:
    operands, output = equation.replace(" ", "").split("->")
    kernel = operands.split(",")[1]
    sizes = dict(zip(kernel, kernel_shape))
    if output[-1] not in sizes:
        return None
    return sizes[output[-1]] / math.prod(sizes[letter] for letter in kernel if letter in output)


def check_error_law(model: keras.Model, x: Any, y: Any) -> list[LawCheck]:
    """Compares the error-bound law with what compression does to the gradients of one batch, in layers with a rule.

    Runs one training step eagerly, without an update; the model, its moving statistics and its bounds
    are left as they were. For each layer, with the dy that reached it: the gradient from its restored
    input minus the one from the input itself, against

        sigma = eb sqrt(R * mean_k sum dy_k^2 / 3)

    for the kernel of a convolution or dense layer, and `theory.batch_norm_sigma` for the gamma and the
    input gradient of a batch normalization.

    Args:
      model: A compressed and compiled model, after some steps of training.
      x: One batch of inputs.
      y: Its targets.

    Returns:
      One `LawCheck` for each convolution and dense layer whose input is held compressed and that
      ran once, then two for each such batch normalization.

    Raises:
      ValueError: The model is not compressed, or not compiled.

    Example:
      >>> for check in ct.check_error_law(model, images[:64], labels[:64]):
      ...     print(check.layer, check.gradient, check.ratio)
    """
    instruments = instrumentation(model)
    if getattr(model, "optimizer", None) is None:
        raise ValueError(f"Model {model.name!r} is not compiled: call model.compile(...) first.")
    # Tensors of our own: what is known of a tensor hangs on it, and would be found at the next check.
    x, y = tf.nest.map_structure(tf.identity, (x, y))
    with _recorded(instruments) as recordings, state_restored(model):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
            loss *= _keras.loss_scale(model.optimizer)
        tape.gradient(loss, _keras.trainable_variables(model))
        del tape
        laws = _laws_of_layers(instruments)
        found = [_check(layer, law, recordings) for layer, law in laws if law.site.kind == "linear"]
        checks = [check for check in found if check is not None]
        for _, law in laws:
            if law.site.kind == "norm":
                checks += _check_batch_norm(law.name, recordings[id(law.site.holder)])
    return checks


class _Normalized(NamedTuple):
    """What went into and came out of a batch normalization's gradient."""

    dy: tf.Tensor
    gamma: tf.Tensor
    mean: tf.Tensor
    inv_std: tf.Tensor
    dx: tf.Tensor
    dgamma: tf.Tensor


class _Recording:
    """Stands in for a site's codec and for its statistics, and keeps what passes through them."""

    def __init__(self, site: Site):
        self._codec = site.codec
        self.held: list[tf.Tensor] = []
        self.bounds: list[float] = []
        self.compression = 1.0
        self.gradients: list[tuple[tf.Tensor, tf.Tensor | None]] = []
        self.normalized: list[_Normalized] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def compress(self, x: tf.Tensor, *args: Any) -> Any:
        through, stream, state = self._codec.compress(x, *args)
        self.held.append(x)
        self.bounds.append(float(state[1]))
        self.compression = 4 * int(tf.size(x)) / max(float(state[5]), 1.0)
        return through, stream, state

    def batch_norm_gradient(
        self, stream: tf.Tensor, dy: tf.Tensor, gamma: tf.Tensor, mean: tf.Tensor, inv_std: tf.Tensor
    ) -> Any:
        dx, dgamma, dbeta = self._codec.batch_norm_gradient(stream, dy, gamma, mean, inv_std)
        self.normalized.append(_Normalized(dy, gamma, mean, inv_std, dx, dgamma))
        return dx, dgamma, dbeta

    def collect(self, dy: tf.Tensor, dw: tf.Tensor | None, scale: tf.Tensor | None = None) -> None:
        self.gradients.append((dy, dw))


@contextlib.contextmanager
def _recorded(instruments: Instrumentation) -> Iterator[dict[int, _Recording]]:
    sites = list(instruments.sites().values())
    recordings = {id(site): _Recording(site) for site in sites}
    before = [(site.codec, site.statistics, site.holder) for site in sites]
    for site in sites:
        site.codec = site.statistics = recordings[id(site)]  # type: ignore[assignment]
    try:
        yield recordings
    finally:
        for site, (codec, statistics, holder) in zip(sites, before):
            site.codec, site.statistics, site.holder = codec, statistics, holder


def _check(layer: keras.layers.Layer, law: LawSite, recordings: dict[int, _Recording]) -> LawCheck | None:
    holder, own = recordings[id(law.site.holder)], recordings[id(law.site)]
    if len(holder.held) != 1 or len(own.gradients) != 1 or own.gradients[0][1] is None:
        return None
    x, bound, (dy, dw_hat) = holder.held[0], holder.bounds[0], own.gradients[0]
    weight = next(v for v in _keras.trainable_variables(layer) if v.shape.rank > 1)
    with _keras.layer_scope(layer), tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weight)
        y = linear_part(layer)(x)
    error = _array(dw_hat) - _array(tape.gradient(y, weight, output_gradients=dy))
    values, gradient = _array(x), _array(dy)
    sum_sq = np.square(gradient).sum() / gradient.shape[-1] * law.share
    predicted = theory.weight_gradient_sigma(bound, _nonzero_ratio(values), sum_sq)
    return _law_check(law.name, "kernel", holder, values, float(predicted), error)


def _check_batch_norm(name: str, recording: _Recording) -> list[LawCheck]:
    if len(recording.held) != 1 or len(recording.normalized) != 1:
        return []
    found = recording.normalized[0]
    bound = recording.bounds[0]
    values = _array(recording.held[0])
    channels = values.shape[-1]
    x, dy, dx_hat = (t.reshape(-1, channels) for t in (values, _array(found.dy), _array(found.dx)))
    gamma, mean, inv_std = _array(found.gamma), _array(found.mean), _array(found.inv_std)
    x_norm = (x - mean) * inv_std
    mean_dy_norm = (dy * x_norm).mean(0)
    dx = gamma * inv_std * (dy - dy.mean(0) - x_norm * mean_dy_norm)
    law = theory.batch_norm_sigma(
        bound, np.square(dy).sum(0), mean_dy_norm, 1.0 / inv_std, gamma, len(dy), _nonzero_ratio(x)
    )
    gamma_error = _array(found.dgamma) - (dy * x_norm).sum(0)
    return [
        _law_check(name, "gamma", recording, values, _rms(law.gamma), gamma_error),
        _law_check(name, "input", recording, values, _rms(np.hypot(law.direct, law.shift)), dx_hat - dx),
    ]


def _law_check(
    layer: str, gradient: str, held: _Recording, x: np.ndarray, predicted: float, error: np.ndarray
) -> LawCheck:
    sigma, bound = float(x.std()), held.bounds[0]
    return LawCheck(
        layer=layer,
        gradient=gradient,
        bound=bound,
        bound_over_sigma=bound / sigma if sigma else math.nan,
        nonzero_ratio=_nonzero_ratio(x),
        predicted_sigma=predicted,
        measured_sigma=_rms(error),
        compression=held.compression,
    )


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean()))


def _nonzero_ratio(values: np.ndarray) -> float:
    return float(np.count_nonzero(values) / max(values.size, 1))


def _array(x: tf.Tensor) -> np.ndarray:
    return tf.cast(x, tf.float64).numpy()
