"""Convolutions and dense layers: one seen without its activation, and the rule of those that are wrapped by hand."""

from __future__ import annotations

import math
import weakref
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.rules.base import Context, Product, Rule, Save
from tf_comptrain.rules.differentiate import from_inputs, from_mask
from tf_comptrain.storage import has_codec, worth_holding

LINEAR_LAYERS: tuple[type, ...] = tuple(
    getattr(keras.layers, name)
    for name in (
        "Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose",
        "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D", "Dense", "EinsumDense",
    )
    if hasattr(keras.layers, name)
)  # fmt: skip
_TRANSPOSED = (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose)
_DEPTHWISE = tuple(layer for layer in LINEAR_LAYERS if layer.__name__.startswith("Depthwise"))


class WithoutActivation:
    """A layer seen without its activation, so that its own `call` computes the linear part alone.

    The layer's attributes stay as they are: they are its configuration. The layer is not kept alive.
    """

    activation = None

    def __init__(self, layer: keras.layers.Layer):
        self.reference = weakref.ref(layer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reference(), name)


class InputAndMask(Rule):
    """The input as a stream, and which elements a ReLU let through as bits."""

    def saves(self, layer: keras.layers.Layer) -> tuple[Save, ...]:
        if not _is_piecewise_linear(layer):
            return (Save("input", "nonlinear"),)
        return (Save("input", "convolution" if hasattr(layer, "kernel_size") else "linear"),)

    def product(self, layer: Any) -> Product | None:
        kernels = [v for v in layer.trainable_variables if len(v.shape) > 1]
        last = getattr(layer, "data_format", "channels_last") == "channels_last"
        if not (last and len(kernels) == 1 and _is_piecewise_linear(layer)):
            return None
        (kernel,) = kernels
        if isinstance(layer, _TRANSPOSED):  # of a stride's positions an element of the kernel meets one
            return Product(kernel, 1.0 / (kernel.shape[-2] * math.prod(layer.strides)))
        if isinstance(layer, _DEPTHWISE):
            return Product(kernel, 1.0 / (kernel.shape[-2] * kernel.shape[-1]))
        return (
            None if isinstance(layer, keras.layers.EinsumDense) else Product(kernel, 1.0 / kernel.shape[-1])
        )

    def call(self, context: Context, x: tf.Tensor, **kwargs: Any) -> Any:
        layer = context.layer
        if not layer.trainable or not worth_holding(x):
            return context.original(x, **kwargs)
        seen = WithoutActivation(layer) if _is_piecewise_linear(layer) else layer
        run = partial(_keras.class_call(layer), seen, **kwargs)
        y = from_inputs(run, [x], [context.sites["input"]], layer)
        return _activate(y, layer) if seen is not layer else y


class MaskOfReLU(Rule):
    """A layer that is a ReLU: bits alone."""

    def call(self, context: Context, x: tf.Tensor, **kwargs: Any) -> Any:
        return from_mask(partial(context.original, **kwargs), x)


def _activate(y: tf.Tensor, layer: Any) -> tf.Tensor:
    """The ReLU of a layer, if it has one, from bits."""
    if layer.activation is not keras.activations.relu:
        return y
    return from_mask(layer.activation, y) if has_codec(y) else layer.activation(y)


def is_relu(layer: Any) -> bool:
    """Whether a layer is max(x, 0) and nothing else."""
    if isinstance(layer, keras.layers.Activation):
        return layer.activation is keras.activations.relu
    own = isinstance(layer, keras.layers.ReLU) and layer.max_value is None
    return own and not layer.negative_slope and not layer.threshold


def _is_piecewise_linear(layer: Any) -> bool:
    return layer.activation in (None, keras.activations.linear, keras.activations.relu)
