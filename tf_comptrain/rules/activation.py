"""Activation functions, as layers of their own or fused into another layer (`activation="relu"`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, native
from tf_comptrain.codecs import SUPPORTED_DTYPES
from tf_comptrain.rules.base import BITMASK, COMPRESS, KEEP, RECOMPUTE, Context, Rule, Save, register_rule
from tf_comptrain.rules.differentiate import from_derivative, from_input, from_mask, from_output
from tf_comptrain.storage import after, derive, slot_of, worth_holding

_RELU = Save("mask", "output", BITMASK, from_stream=True)
_BITS = Save("mask", "output", BITMASK)
_OUTPUT = Save("output", "output", COMPRESS, kind="nonlinear")
_INPUT = Save("pre-activation", "before", COMPRESS, kind="nonlinear")

_activations = keras.activations
gelu_tanh = partial(_activations.gelu, approximate=True)
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
) + (gelu_tanh,)  # fmt: skip


def _gelu(x: tf.Tensor) -> tf.Tensor:
    """In one pass where there is a kernel."""
    return native.ops().comptrain_gelu(x) if _keras.on_cpu_executor() else _activations.gelu(x)


def _gelu_gradient(dy: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """dy (Phi(x) + x phi(x)) in the memory of dy, x and one more tensor; of dy alone where there is a kernel.

    An operation goes on in its input's buffer where nothing else will read that: hence the order.
    """
    if _keras.on_cpu_executor():
        return native.ops().comptrain_gelu_grad(x, dy)
    # Factors stand where the graph's optimizer does not move them, for it would give each a tensor.
    half = 0.5 * dy
    along = half * tf.math.erfc(x * -math.sqrt(0.5))
    across = after(half, [along]) * x
    density = tf.exp(-0.5 * tf.square(after(x, [across])) + 0.5 * math.log(2 / math.pi))
    return along + across * density


def _gelu_tanh_gradient(dy: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """dy ((1 + t) / 2 + x (1 - t^2) u' / 2) with t = tanh(u), u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    scale = math.sqrt(2 / math.pi)
    t = tf.tanh(x * (scale + scale * 0.044715 * tf.square(x)))
    along = dy * (0.5 + 0.5 * t)
    x = after(x, [along])
    across = (dy - dy * tf.square(t)) * x
    return along + across * (0.5 * scale + 1.5 * scale * 0.044715 * tf.square(after(x, [across])))


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
_GRADIENTS[gelu_tanh] = _gelu_tanh_gradient
_FORWARD = {_activations.gelu: _gelu}

# function: (upper end of the slope-1 range, slope outside)
_BIT_SLOPES = {
    getattr(_activations, name): slopes
    for name, slopes in {"relu6": (6.0, 0.0), "leaky_relu": (float("inf"), 0.2)}.items()
    if hasattr(_activations, name)
}
_BEFORE_A_LOSS = (_activations.softmax, _activations.sigmoid)
LOSS_READS_LOGITS = "Keras' losses look for the logits behind the last activation"


def is_linear(fn: Any) -> bool:
    return fn is None or fn is _activations.linear


def saves_of(fn: Any, layer: Any) -> tuple[Save, ...]:
    """What the gradient of a layer's activation function fn needs; empty also where it stays plain."""
    if fn is _activations.relu:
        return (_RELU,)
    if fn in _BIT_SLOPES:
        return (_BITS,)
    if is_linear(fn) or why_plain(fn, layer) is not None:
        return ()
    return (_OUTPUT,) if fn in _FROM_OUTPUT else (_INPUT,)


def why_plain(fn: Any, layer: Any) -> str | None:
    """Why the activation function of a layer, or an operation that is one, stays plain; None when it need not."""
    if is_linear(fn) or fn is _activations.relu or fn in _BIT_SLOPES or fn in _FROM_INPUT:
        return None
    if fn not in _FROM_OUTPUT:
        return f"the gradient of activation {getattr(fn, '__name__', type(fn).__name__)} is not known"
    if fn in _BEFORE_A_LOSS and _keras.makes_an_output(layer):
        return LOSS_READS_LOGITS
    return None


def apply(fn: Any, context: Context, x: tf.Tensor) -> tf.Tensor:
    """The layer's activation function fn of x, holding what its gradient needs; plain where that is not known."""
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
        y = from_output(fn, _FROM_OUTPUT[fn], x, site)
        if fn in _BEFORE_A_LOSS:
            _keras.remember_logits(y, x)
        return y
    forward = _FORWARD.get(fn, fn)
    y = (
        from_derivative(forward, _GRADIENTS[fn], x, site)
        if fn in _GRADIENTS
        else from_input(fn, x, site, context.layer)
    )
    slot_of(y).rebuilt = derive(x, forward)
    return y


class Activation(Rule):
    """A layer or operation that is an activation function: whatever that needs.

    Args:
      function: Of a layer or operation: its function in keras.activations.
    """

    storages = (COMPRESS, RECOMPUTE, KEEP)
    elementwise = True

    def __init__(self, function: Callable[[Any], Callable]):
        self.function = function

    def obstacle(self, layer):
        return why_plain(self.function(layer), layer)

    def saves(self, layer, storage):
        # What a layer with a fused activation makes inside is the input of this one.
        saves = saves_of(self.function(layer), layer)
        return tuple(save._replace(of="input") if save == _INPUT else save for save in saves)

    def call(self, context: Context, x, **kwargs):
        return apply(self.function(context.layer), context, x)


class Slopes(NamedTuple):
    """Slope 1 where lower < x < upper, slope `off` elsewhere."""

    lower: float = 0.0
    upper: float = float("inf")
    off: float = 0.0


class Mask(Rule):
    """A layer or operation of two slopes: one bit per element.

    Args:
      slopes: Of a layer or operation.
    """

    storages = (BITMASK, KEEP)
    elementwise = True

    def __init__(self, slopes: Callable[[Any], Slopes]):
        self.slopes = slopes

    def obstacle(self, layer):
        if getattr(layer, "max_value", None) is not None and self.slopes(layer).off != 0.0:
            return "negative_slope together with max_value needs two bits per element"
        return None

    def saves(self, layer, storage):
        return (_RELU if self.slopes(layer) == Slopes() else _BITS,)

    def call(self, context: Context, x, **kwargs):
        if x.dtype not in SUPPORTED_DTYPES:
            return context.original(x, **kwargs)
        return from_mask(partial(context.original, **kwargs), x, *self.slopes(context.layer))


def _slopes(layer: keras.layers.Layer) -> Slopes:
    off = getattr(layer, "negative_slope", None)
    if off is None:
        off = layer.alpha  # Keras 2's LeakyReLU
    upper = getattr(layer, "max_value", None)
    lower = getattr(layer, "threshold", 0.0)
    return Slopes(float(lower), float("inf") if upper is None else float(upper), float(off))


register_rule(keras.layers.Activation)(Activation(lambda layer: layer.activation))
register_rule(keras.layers.ReLU, keras.layers.LeakyReLU)(Mask(_slopes))
