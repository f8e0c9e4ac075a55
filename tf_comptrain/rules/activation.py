"""Activation functions, as layers of their own or fused into another layer (`activation="relu"`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.codecs import SUPPORTED_DTYPES
from tf_comptrain.rules.base import BITMASK, COMPRESS, KEEP, RECOMPUTE, Context, Rule, Save, register_rule
from tf_comptrain.rules.differentiate import from_derivative, from_input, from_mask, from_output
from tf_comptrain.storage import after, derive, slot_of, worth_holding

_RELU = Save("mask", "output", BITMASK, from_stream=True)
_BITS = Save("mask", "output", BITMASK)
_OUTPUT = Save("output", "output", COMPRESS, kind="nonlinear")
_INPUT = Save("pre-activation", "output", COMPRESS, kind="nonlinear")

_activations = keras.activations
_FROM_OUTPUT = {
    _activations.tanh: lambda dy, y: dy * (1 - y * y),
    _activations.sigmoid: lambda dy, y: dy * y * (1 - y),
    _activations.softmax: lambda dy, y: y * (dy - tf.reduce_sum(dy * y, axis=-1, keepdims=True)),
}
_FROM_INPUT = tuple(
    getattr(_activations, name)
    for name in (
        "celu", "elu", "exponential", "gelu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh",
        "log_sigmoid", "mish", "selu", "silu", "softplus", "softsign", "squareplus", "swish", "tanh_shrink",
    )
    if hasattr(_activations, name)
)  # fmt: skip


def _gelu_gradient(dy: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """dy (Phi(x) + x phi(x)) in the memory of dy, x and one more tensor.

    An operation goes on in its input's buffer where nothing else will read that: hence the order.
    """
    # Factors stand where the graph's optimizer does not move them, for it would give each a tensor.
    half = 0.5 * dy
    along = half * tf.math.erfc(x * -math.sqrt(0.5))
    across = after(half, [along]) * x
    density = tf.exp(-0.5 * tf.square(after(x, [across])) + 0.5 * math.log(2 / math.pi))
    return along + across * density


def _silu_gradient(dy: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """dy (s + x s (1 - s)) with s = sigmoid(x), in the memory of dy, x and one more tensor."""
    s = tf.sigmoid(x)
    across = dy * after(x, [s])
    along = after(dy, [across]) * s
    return along + tf.raw_ops.SigmoidGrad(y=s, dy=across)


# Where automatic differentiation would take many tensors of the activation's size.
_GRADIENTS = {
    fn: gradient
    for name, gradient in {"gelu": _gelu_gradient, "silu": _silu_gradient, "swish": _silu_gradient}.items()
    if (fn := getattr(_activations, name, None)) is not None
}

# function: (upper end of the slope-1 range, slope outside)
_BIT_SLOPES = {
    getattr(_activations, name): slopes
    for name, slopes in {"relu6": (6.0, 0.0), "leaky_relu": (float("inf"), 0.2)}.items()
    if hasattr(_activations, name)
}
_BEFORE_A_LOSS = (_activations.softmax, _activations.sigmoid)
LOSS_READS_LOGITS = "Keras' losses look for the logits behind the last activation"


def is_linear(fn: Callable | None) -> bool:
    return fn is None or fn is _activations.linear


def saves_of(layer: keras.layers.Layer) -> tuple[Save, ...]:
    """What the gradient of a layer's activation function needs; empty also where it stays plain."""
    fn = layer.activation
    if fn is _activations.relu:
        return (_RELU,)
    if fn in _BIT_SLOPES:
        return (_BITS,)
    if is_linear(fn) or _why_plain(layer) is not None:
        return ()
    return (_OUTPUT,) if fn in _FROM_OUTPUT else (_INPUT,)


def _why_plain(layer: keras.layers.Layer) -> str | None:
    fn = layer.activation
    if is_linear(fn) or fn is _activations.relu or fn in _BIT_SLOPES or fn in _FROM_INPUT:
        return None
    if fn not in _FROM_OUTPUT:
        return f"the gradient of activation {getattr(fn, '__name__', type(fn).__name__)} is not known"
    if fn in _BEFORE_A_LOSS and not _keras.feeds_a_layer(layer):
        return LOSS_READS_LOGITS
    return None


def apply(context: Context, x: tf.Tensor) -> tf.Tensor:
    """The layer's activation of x, holding what its gradient needs; plain where that is not known."""
    fn = context.layer.activation
    if is_linear(fn):
        return x
    if x.dtype not in SUPPORTED_DTYPES:
        return fn(x)
    if fn is _activations.relu:
        return from_mask(fn, x)
    if fn in _BIT_SLOPES:
        upper, off = _BIT_SLOPES[fn]
        return from_mask(fn, x, upper=upper, off=off)
    site = next((site for role, site in context.sites.items() if role != "input"), None)
    if site is None or not worth_holding(x):
        return fn(x)
    if fn in _FROM_OUTPUT:
        return from_output(fn, _FROM_OUTPUT[fn], x, site)
    y = (
        from_derivative(fn, _GRADIENTS[fn], x, site)
        if fn in _GRADIENTS
        else from_input(fn, x, site, context.layer)
    )
    slot_of(y).rebuilt = derive(x, fn)
    return y


class _Activation(Rule):
    """keras.layers.Activation: whatever its function needs."""

    storages = (COMPRESS, RECOMPUTE, KEEP)
    elementwise = True

    def obstacle(self, layer):
        return _why_plain(layer)

    def saves(self, layer, storage):
        return saves_of(layer)

    def call(self, context: Context, x, **kwargs):
        return apply(context, x)


class _MaskLayer(Rule):
    """ReLU and LeakyReLU layers: one bit per element."""

    storages = (BITMASK, KEEP)
    elementwise = True

    def obstacle(self, layer):
        if getattr(layer, "max_value", None) is not None and _slopes(layer).off != 0.0:
            return "negative_slope together with max_value needs two bits per element"
        return None

    def saves(self, layer, storage):
        return (_RELU if _slopes(layer) == _Slopes() else _BITS,)

    def call(self, context: Context, x, **kwargs):
        if x.dtype not in SUPPORTED_DTYPES:
            return context.original(x, **kwargs)
        return from_mask(partial(context.original, **kwargs), x, *_slopes(context.layer))


class _Slopes(NamedTuple):
    """Slope 1 where lower < x < upper, slope `off` elsewhere."""

    lower: float = 0.0
    upper: float = float("inf")
    off: float = 0.0


def _slopes(layer: keras.layers.Layer) -> _Slopes:
    off = getattr(layer, "negative_slope", None)
    if off is None:
        off = layer.alpha  # Keras 2's LeakyReLU
    upper = getattr(layer, "max_value", None)
    lower = getattr(layer, "threshold", 0.0)
    return _Slopes(float(lower), float("inf") if upper is None else float(upper), float(off))


register_rule(keras.layers.Activation)(_Activation())
register_rule(keras.layers.ReLU, keras.layers.LeakyReLU)(_MaskLayer())
