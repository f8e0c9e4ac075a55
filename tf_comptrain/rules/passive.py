"""Layers whose gradient needs no tensor, and dropout, which needs its mask."""

from __future__ import annotations

from functools import partial

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, native
from tf_comptrain.codecs import SUPPORTED_DTYPES
from tf_comptrain.rules.base import BITMASK, KEEP, NOTHING, Context, Passive, Rule, Save, register_rule
from tf_comptrain.rules.differentiate import from_replay
from tf_comptrain.rules.elementwise import NO_REPLAY
from tf_comptrain.storage import fenced

_NAMES = (
    "InputLayer", "Flatten", "Reshape", "Permute", "RepeatVector", "Identity",
    "Add", "Subtract", "Average", "Concatenate",
    "ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D", "Cropping1D", "Cropping2D", "Cropping3D",
    "UpSampling1D", "UpSampling2D", "UpSampling3D", "GaussianNoise", "Rescaling", "Normalization",
    "ActivityRegularization", "Embedding", "Masking", "Resizing", "CenterCrop",
    "AdaptiveAveragePooling1D", "AdaptiveAveragePooling2D", "AdaptiveAveragePooling3D",
)  # fmt: skip
register_rule(*(getattr(keras.layers, name) for name in _NAMES if hasattr(keras.layers, name)))(Passive())


def drop(layer: keras.layers.Layer, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """x after a dropout layer in training, with the random numbers that Keras would draw, and what was kept.

    Returns:
      y, and one bit per element, for `dropped`.
    """
    ops = native.ops()
    rate = float(layer.rate)
    own = _keras.class_call(layer)
    one_pass = own is keras.layers.Dropout.call and layer.noise_shape is None
    if one_pass and _keras.KERAS_3 and _keras.on_cpu_executor():
        y, bits = ops.comptrain_dropout(x, *_keras.draw_key(layer), rate=rate, scale=1 / (1 - rate))
        return y, bits
    scaled_mask, bits = ops.comptrain_bitmask(own(layer, tf.ones_like(x), training=True))
    return x * scaled_mask, bits


def dropped(rate: float, x: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """Another tensor through the same dropout of that rate: the incoming gradient, or x again."""
    return native.ops().comptrain_bitmask_grad(bits, x, on=1 / (1 - float(rate)))


def drops(layer: keras.layers.Layer, dtype: tf.DType) -> bool:
    """Whether a dropout layer does anything that `drop` is for."""
    return 0 < float(layer.rate) < 1 and dtype in SUPPORTED_DTYPES


class _Dropout(Rule):
    """One bit per element says what was kept."""

    storages = (BITMASK, KEEP)

    def saves(self, layer, storage):
        return (Save("mask", "output", BITMASK),) if layer.rate > 0 else ()

    def call(self, context: Context, x, **kwargs):
        layer = context.layer
        if not _keras.training() or not drops(layer, x.dtype):
            return context.original(x, **kwargs)
        rate = layer.rate

        @_keras.custom_gradient
        def apply(x):
            with _keras.quiet_tape():
                y, bits = drop(layer, x)
            return y, lambda dy: dropped(rate, dy, bits)

        return apply(fenced(x))


class _Noise(Rule):
    """x times random numbers, plus others: they are drawn again, and nothing is held."""

    storages = (NOTHING, KEEP)

    def obstacle(self, layer):
        return None if _keras.KERAS_3 else NO_REPLAY

    def saves(self, layer, storage):
        return ()

    def call(self, context: Context, x, **kwargs):
        if not _keras.training():
            return context.original(x, **kwargs)
        kwargs["training"] = True
        return from_replay(partial(context.original, **kwargs), x, context.layer)


register_rule(keras.layers.AlphaDropout, keras.layers.GaussianDropout)(_Noise())
register_rule(
    keras.layers.Dropout,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
)(_Dropout())
