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
from tf_comptrain.model import Instrumentation, instrumentation
from tf_comptrain.rules.linear import linear_part
from tf_comptrain.storage import Site


class LawSite(NamedTuple):
    """A layer whose weight-gradient error the law predicts.

    Attributes:
      layer: The layer.
      name: Its path in the model.
      site: Where its input is held.
      share: Sum of dy^2 behind one weight gradient / mean over the channels of sum dy_k^2.
    """

    layer: keras.layers.Layer
    name: str
    site: Site
    share: float


class LawCheck(NamedTuple):
    """Law and measurement on one layer and batch: the gradient from x against that from x_hat, same dy.

    Attributes:
      layer: Path of the layer.
      bound: Error bound of its input, in units of x.
      bound_over_sigma: The same over the standard deviation of the input.
      nonzero_ratio: Non-zero elements / elements of the input.
      predicted_sigma: Of the weight-gradient error, by `theory.weight_gradient_sigma`.
      measured_sigma: Its root mean square over the weights.
    """

    layer: str
    bound: float
    bound_over_sigma: float
    nonzero_ratio: float
    predicted_sigma: float
    measured_sigma: float

    @property
    def ratio(self) -> float:
        """Measured / predicted; 1 where the law holds."""
        return self.measured_sigma / self.predicted_sigma if self.predicted_sigma else math.nan


def law_sites(instruments: Instrumentation) -> list[LawSite]:
    """The layers of a compressed model that the law covers, in the order of the model."""
    found = []
    for layer, instrument in instruments.instruments.items():
        for site in instrument.context.sites.values():
            share = _share(layer) if site.kind == "linear" else None
            if share is not None:
                found.append(LawSite(layer, instrument.path, site, share))
    return found


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
    """Compares the error-bound law with what compression does to the gradients of one batch.

    Runs one training step eagerly, without an update; the model, its moving statistics and its bounds
    are left as they were. For each layer, with the dy that reached it: the weight gradient from its
    restored input minus the one from the input itself, against

        sigma = eb sqrt(R * mean_k sum dy_k^2 / 3).

    Args:
      model: A compressed and compiled model, after some steps of training.
      x: One batch of inputs.
      y: Its targets.

    Returns:
      One `LawCheck` for each convolution and dense layer whose input is held compressed and that
      ran once.

    Raises:
      ValueError: The model is not compressed, or not compiled.

    Example:
      >>> for check in ct.check_error_law(model, images[:64], labels[:64]):
      ...     print(check.layer, check.ratio)
    """
    instruments = instrumentation(model)
    if getattr(model, "optimizer", None) is None:
        raise ValueError(f"Model {model.name!r} is not compiled: call model.compile(...) first.")
    x, y = tf.nest.map_structure(tf.convert_to_tensor, (x, y))
    sites = law_sites(instruments)
    with _recorded(instruments) as recordings, _left_alone(model, instruments):
        with tf.GradientTape() as tape:
            loss = _keras.compute_loss(model, x, y)
        tape.gradient(loss, _keras.trainable_variables(model))
        del tape
        checks = [_check(law, recordings) for law in sites]
    return [check for check in checks if check is not None]


class _Recording:
    """Stands in for a site's codec and for its statistics, and keeps what passes through them."""

    def __init__(self, site: Site):
        self._codec = site.codec
        self.held: list[tf.Tensor] = []
        self.bounds: list[float] = []
        self.gradients: list[tuple[tf.Tensor, tf.Tensor | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def compress(self, x: tf.Tensor, *args: Any) -> Any:
        through, stream, state = self._codec.compress(x, *args)
        self.held.append(x)
        self.bounds.append(float(state[1]))
        return through, stream, state

    def collect(self, dy: tf.Tensor, dw: tf.Tensor | None) -> None:
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


@contextlib.contextmanager
def _left_alone(model: keras.Model, instruments: Instrumentation) -> Iterator[None]:
    """Puts back what a forward pass changes: moving statistics, seeds, metrics and codec states."""
    variables = [*_keras.all_variables(model), *(site.state for site in instruments.sites().values())]
    values = [v.numpy() for v in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values):
            variable.assign(value)


def _check(law: LawSite, recordings: dict[int, _Recording]) -> LawCheck | None:
    holder, own = recordings[id(law.site.holder)], recordings[id(law.site)]
    if len(holder.held) != 1 or len(own.gradients) != 1 or own.gradients[0][1] is None:
        return None
    x, bound, (dy, dw_hat) = holder.held[0], holder.bounds[0], own.gradients[0]
    weight = next(v for v in _keras.trainable_variables(law.layer) if v.shape.rank > 1)
    with _keras.layer_scope(law.layer), tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weight)
        y = linear_part(law.layer)(x)
    error = _array(dw_hat) - _array(tape.gradient(y, weight, output_gradients=dy))
    values, gradient = _array(x), _array(dy)
    nonzero_ratio = np.count_nonzero(values) / max(values.size, 1)
    sum_sq = np.square(gradient).sum() / gradient.shape[-1]
    predicted = theory.weight_gradient_sigma(bound, nonzero_ratio, sum_sq * law.share)
    sigma = float(values.std())
    return LawCheck(
        layer=law.name,
        bound=bound,
        bound_over_sigma=bound / sigma if sigma else math.nan,
        nonzero_ratio=nonzero_ratio,
        predicted_sigma=float(predicted),
        measured_sigma=float(np.sqrt(np.square(error).mean())),
    )


def _array(x: tf.Tensor) -> np.ndarray:
    return tf.cast(x, tf.float64).numpy()
