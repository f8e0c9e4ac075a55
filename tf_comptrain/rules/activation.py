"""Activation functions, as layers of their own or fused into another layer (`activation="relu"`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import tensorflow as tf
from tensorflow import keras

from tf_comptrain.rules.base import BITMASK, COMPRESS, KEEP, Context, Rule, Save, register_rule
from tf_comptrain.rules.differentiate import from_input, from_mask, from_output
from tf_comptrain.storage import Site, worth_holding

_RELU = Save("mask", "output", BITMASK, from_stream=True)
_BITS = Save("mask", "output", BITMASK)
_OUTPUT = Save("output", "output", COMPRESS, kind="nonlinear")
_INPUT = Save("pre-activation", "output", COMPRESS, kind="nonlinear")

_activations = keras.activations
_FROM_OUTPUT = {
    _activations.tanh: lambda dy, y: dy * (1 - y * y),
    _activations.sigmoid: lambda dy, y: dy * y * (1 - y),
}
_FROM_INPUT = tuple(
    getattr(_activations, name)
    for name in ("gelu", "silu", "swish", "elu", "selu", "softplus", "softsign", "mish", "exponential")
    if hasattr(_activations, name)
)


def is_linear(fn: Callable | None) -> bool:
    return fn is None or fn is _activations.linear


def saves_of(fn: Callable | None) -> tuple[Save, ...]:
    """What the gradient of an activation function needs; empty also where it stays plain."""
    if fn is _activations.relu:
        return (_RELU,)
    if fn is getattr(_activations, "relu6", object) or fn is getattr(_activations, "leaky_relu", object):
        return (_BITS,)
    if fn in _FROM_OUTPUT:
        return (_OUTPUT,)
    if fn in _FROM_INPUT:
        return (_INPUT,)
    return ()


def known(fn: Callable | None) -> bool:
    return is_linear(fn) or bool(saves_of(fn))


def apply(fn: Callable | None, x: tf.Tensor, layer: keras.layers.Layer, site: Site | None) -> tf.Tensor:
    """fn(x), holding what its gradient needs; plain where that is not known."""
    if is_linear(fn):
        return x
    if fn is _activations.relu:
        return from_mask(fn, x)
    if fn is getattr(_activations, "relu6", object):
        return from_mask(fn, x, upper=6.0)
    if fn is getattr(_activations, "leaky_relu", object):
        return from_mask(fn, x, off=0.2)
    if site is None or not worth_holding(x):
        return fn(x)
    if fn in _FROM_OUTPUT:
        return from_output(fn, _FROM_OUTPUT[fn], x, site)
    if fn in _FROM_INPUT:
        return from_input(fn, x, site, layer)
    return fn(x)


class _Activation(Rule):
    """keras.layers.Activation: whatever its function needs."""

    def obstacle(self, layer):
        if not known(layer.activation):
            return f"the gradient of activation {_name(layer.activation)} is not known"
        return None

    def saves(self, layer, storage):
        return saves_of(layer.activation)

    def call(self, context: Context, x, **kwargs):
        sites = list(context.sites.values())
        return apply(layer_activation(context), x, context.layer, sites[0] if sites else None)


def layer_activation(context: Context) -> Callable:
    return context.layer.activation


def _name(fn: Callable) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


class _MaskLayer(Rule):
    """ReLU and LeakyReLU layers: one bit per element."""

    storages = (BITMASK, KEEP)

    def obstacle(self, layer):
        if _slopes(layer) is None:
            return "negative_slope together with max_value needs two bits per element"
        return None

    def saves(self, layer, storage):
        lower, upper, off = _slopes(layer)
        return (_RELU if (lower, upper, off) == (0.0, float("inf"), 0.0) else _BITS,)

    def call(self, context: Context, x, **kwargs):
        if not x.dtype.is_floating or x.dtype == tf.float64:
            return context.original(x, **kwargs)
        lower, upper, off = _slopes(context.layer)
        return from_mask(partial(context.original, **kwargs), x, lower, upper, off)


def _slopes(layer: keras.layers.Layer) -> tuple[float, float, float] | None:
    """(lower, upper, slope outside) of a ReLU-like layer; None where one bit does not tell."""
    off = getattr(layer, "negative_slope", None)
    if off is None:
        off = layer.alpha  # Keras 2's LeakyReLU
    upper = getattr(layer, "max_value", None)
    lower = getattr(layer, "threshold", 0.0)
    if float(off) != 0.0 and upper is not None:
        return None
    return float(lower), float("inf") if upper is None else float(upper), float(off)


class _InputLayer(Rule):
    """Elementwise layers whose gradient is recomputed from the compressed input."""

    def saves(self, layer, storage):
        return (Save("input", "input", COMPRESS, kind="nonlinear"),)

    def call(self, context: Context, x, **kwargs):
        if not worth_holding(x):
            return context.original(x, **kwargs)
        return from_input(partial(context.original, **kwargs), x, context.sites["input"], context.layer)


register_rule(keras.layers.Activation)(_Activation())
register_rule(keras.layers.ReLU, keras.layers.LeakyReLU)(_MaskLayer())
register_rule(keras.layers.ELU)(_InputLayer())
