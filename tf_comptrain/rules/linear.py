"""Convolutions and dense layers: the weight gradient needs the input, the input gradient does not.

The error of a stored input therefore stays in this layer's weight gradient (theory.py).
"""

from __future__ import annotations

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

    The layer's attributes stay as they are: they are its configuration.
    """

    activation = None

    def __init__(self, layer: keras.layers.Layer):
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


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
        return (Save("input", "input", COMPRESS, kind="linear"), *activation.saves_of(layer))

    def call(self, context: Context, x, **kwargs):
        layer = context.layer
        if not layer.trainable:
            return context.original(x, **kwargs)
        linear = linear_part(layer, **kwargs)
        y = from_input(linear, x, context.sites["input"], layer) if worth_holding(x) else linear(x)
        return activation.apply(context, y)


_LAYERS = [
    getattr(keras.layers, name)
    for name in (
        "Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose",
        "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D", "Dense", "EinsumDense",
    )
    if hasattr(keras.layers, name)
]  # fmt: skip
register_rule(*_LAYERS)(_Linear())
