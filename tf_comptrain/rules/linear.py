"""Convolutions and dense layers: the weight gradient needs the input, the input gradient does not.

The error of a stored input therefore stays in this layer's weight gradient (theory.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.rules import activation
from tf_comptrain.rules.base import COMPRESS, KEEP, RECOMPUTE, Context, Rule, Save, register_rule
from tf_comptrain.rules.differentiate import from_input
from tf_comptrain.storage import worth_holding


class _WithoutActivation:
    """A layer seen without its activation, so that its own `call` computes the linear part alone.

    The layer's attributes stay as they are: they are its configuration. The layer is not kept alive.
    """

    activation = None

    def __init__(self, layer: keras.layers.Layer):
        self._reference = weakref.ref(layer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reference(), name)

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        layer: Any = self._reference()
        if not _is_depthwise(layer, inputs):
            return layer.convolution_op(inputs, kernel)
        channels, stride = inputs.shape[-1], layer.strides[0]
        return tf.nn.depthwise_conv2d(
            inputs,
            tf.reshape(kernel, [*kernel.shape[:2], channels, kernel.shape[3] // channels]),
            strides=(1, stride, stride, 1),
            padding=layer.padding.upper(),
            dilations=layer.dilation_rate,
        )


def _is_depthwise(layer: keras.layers.Layer, inputs: tf.Tensor) -> bool:
    """Whether a Conv2D has as many groups as channels, for which TensorFlow has kernels of their own.

    Keras compiles it with XLA instead, whose weight gradient writes out the input once per position of
    the kernel: 49 times, for the first convolutions of ConvNeXt.
    """
    return (
        isinstance(layer, keras.layers.Conv2D)
        and type(layer).convolution_op is keras.layers.Conv2D.convolution_op
        and 1 < layer.groups == inputs.shape[-1]
        and layer.data_format == "channels_last"
        and layer.strides[0] == layer.strides[1]
        and (layer.strides[0] == 1 or max(layer.dilation_rate) == 1)
    )


def linear_part(layer: keras.layers.Layer, **kwargs: Any) -> Callable[[tf.Tensor], tf.Tensor]:
    """The layer's own call without its activation, as a function of its input."""
    return partial(_keras.class_call(layer), _WithoutActivation(layer), **kwargs)


class _Linear(Rule):
    storages = (COMPRESS, RECOMPUTE, KEEP)

    def obstacle(self, layer):
        if not layer.trainable:
            return "frozen: without a weight gradient nothing is saved"
        if getattr(layer, "quantization_mode", None) is not None:
            return f"quantized ({layer.quantization_mode})"
        return None

    def saves(self, layer, storage):
        return (
            Save("input", "input", COMPRESS, kind="linear"),
            *activation.saves_of(layer.activation, layer),
        )

    def call(self, context: Context, x, **kwargs):
        layer = context.layer
        if not layer.trainable:
            return context.original(x, **kwargs)
        linear = linear_part(layer, **kwargs)
        y = from_input(linear, x, context.sites["input"], layer) if worth_holding(x) else linear(x)
        return activation.apply(layer.activation, context, y)


_LAYERS = [
    getattr(keras.layers, name)
    for name in (
        "Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose",
        "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D", "Dense", "EinsumDense",
    )
    if hasattr(keras.layers, name)
]  # fmt: skip
register_rule(*_LAYERS)(_Linear())
